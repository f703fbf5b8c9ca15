// Bundles the console into OUT (default ../assets), every file gzip-compressed,
// with the licences of everything that went in. The bundle depends on nothing
// but the sources here and package-lock.json: same input, same output.
//
//   node build.mjs [OUT]
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { gunzipSync, gzipSync } from 'node:zlib';
import { build } from 'esbuild';

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, '../assets'));

const result = await build({
  absWorkingDir: here,
  entryPoints: { main: 'main.jsx', editor: 'workers/editor.js', json: 'workers/json.js', graphql: 'workers/graphql.js' },
  outdir: out,
  write: false,
  bundle: true,
  minify: true,
  metafile: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  assetNames: '[name]',
  loader: { '.ttf': 'file', '.graphql': 'text' },
  define: { 'process.env.NODE_ENV': '"production"' },
  legalComments: 'none',
  logLevel: 'warning',
});

const files = new Map(result.outputFiles.map((f) => [relative(out, f.path), f.contents]));
for (const name of ['index.html', 'icon.svg']) files.set(name, readFileSync(join(here, name)));
files.set('licenses.txt', Buffer.from(licences(Object.keys(result.metafile.inputs))));

mkdirSync(out, { recursive: true });
for (const name of readdirSync(out)) {
  if (!files.has(name.replace(/\.gz$/, ''))) rmSync(join(out, name));
}
const sums = {};
for (const [name, bytes] of [...files].sort(([a], [b]) => (a < b ? -1 : 1))) {
  sums[name] = sha256(bytes);
  writeCompressed(join(out, `${name}.gz`), bytes);
}
writeFileSync(join(out, 'manifest.json'), `${JSON.stringify({ inputs: inputSums(), files: sums }, null, 2)}\n`);

// writeCompressed leaves a file with the same content as it is: another zlib
// compresses to other bytes, which is no change.
function writeCompressed(path, bytes) {
  if (existsSync(path) && gunzipSync(readFileSync(path)).equals(Buffer.from(bytes))) return;
  writeFileSync(path, gzipSync(bytes, { level: 9 }));
}

// inputSums names what the bundle was made from, so that a test can tell a
// stale one without Node: every file here but the installed packages.
function inputSums() {
  const sums = {};
  for (const name of readdirSync(here, { recursive: true }).sort()) {
    const path = join(here, name);
    if (name.split(sep)[0] === 'node_modules' || !statSync(path).isFile()) continue;
    sums[name.split(sep).join('/')] = sha256(readFileSync(path));
  }
  return sums;
}

function sha256(bytes) {
  return createHash('sha256').update(bytes).digest('hex');
}

// licences gathers the licence texts of the packages that inputs came from.
function licences(inputs) {
  const roots = new Set();
  for (const input of inputs) {
    const root = input.match(/^.*node_modules\/(@[^/]+\/[^/]+|[^/]+)/);
    if (root) roots.add(root[0]);
  }
  const sections = [...roots].sort().map((root) => {
    const dir = join(here, root);
    const pkg = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
    const texts = readdirSync(dir)
      .filter((n) => /^(licen[cs]e|copying|notice|thirdpartynotices)/i.test(n))
      .sort()
      .map((n) => readFileSync(join(dir, n), 'utf8').replace(/\r\n/g, '\n').trim());
    const title = `${pkg.name} ${pkg.version} (${pkg.license ?? 'see below'})`;
    return [title, '-'.repeat(title.length), ...texts].join('\n\n');
  });
  return `The console is built from these packages.\n\n${sections.join('\n\n\n')}\n`;
}
