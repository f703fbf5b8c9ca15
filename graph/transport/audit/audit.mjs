// The audits of the npm package graphql-http against URL; one line a failure.
import { serverAudits } from 'graphql-http';

const audits = serverAudits({ url: process.argv[2], fetchFn: fetch });
let ok = 0;
for (const audit of audits) {
  const result = await audit.fn();
  if (result.status === 'ok') ok++;
  else console.log(result.status, audit.id, audit.name, '::', result.reason);
}
console.log(`${ok} of ${audits.length}`);
process.exit(ok === audits.length ? 0 : 1);
