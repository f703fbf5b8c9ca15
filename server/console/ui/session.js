// Who is signed in. The key is in this tab alone, in sessionStorage: never in the
// address, in localStorage or in a log.
const place = 'muster:key';
const base = new URL('..', document.baseURI); // the page may be served below a path prefix

export const api = new URL('graphql', base);

// takeCode returns the code of a one-time link, or '', and takes it out of the address bar
// before anything else can read it there.
export function takeCode() {
  const code = location.hash.slice(1);
  if (!code.startsWith('muster_')) return '';
  history.replaceState(null, '', location.pathname + location.search);
  return code;
}

export const linked = takeCode();

// Refusal is an answer of the server that is none.
class Refusal extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status; // of HTTP; 0: there was no answer
    this.code = code; // of an error of GraphQL
  }
}

export const headersOf = (key) => (key ? { authorization: `Bearer ${key}` } : {});

// reasonOf is what an answer says of why it is none.
export async function reasonOf(response) {
  const body = await response.json().catch(() => null);
  return body?.errors?.[0]?.message ?? `the server answered ${response.status}`;
}

async function post(url, key, body) {
  const response = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headersOf(key) },
    body: JSON.stringify(body),
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
  }).catch(() => {
    throw new Refusal(0, 'The server does not answer: is it running? Load this page again when it is.');
  });
  if (!response.ok) throw new Refusal(response.status, await reasonOf(response));
  return response.status === 204 ? null : response.json();
}

async function ask(key, query) {
  const { data, errors } = await post(api, key, { query });
  if (errors) throw new Refusal(200, errors[0].message, errors[0].extensions?.code);
  return data;
}

// whoIs returns the session of a key; '' is nobody, which is enough where no key is asked for.
async function whoIs(key) {
  const { whoami } = await ask(key, '{ whoami { name role parent createdBy expiresAt } }');
  if (whoami) return { key, name: whoami.parent ? whoami.createdBy : whoami.name, role: whoami.role, until: whoami.expiresAt };
  sessionStorage.removeItem(place);
  return { key: '' };
}

async function redeem(code) {
  return (await post(new URL('sign-in', base), '', { code })).key;
}

async function keep(key) {
  const session = await whoIs(key);
  if (session.key) sessionStorage.setItem(place, key);
  return session;
}

// resume returns the session that this tab has, or the one that code signs in to. It throws
// when there is none; the message is for the panel, and empty when nobody tried to.
export async function resume(code) {
  const before = sessionStorage.getItem(place) ?? '';
  try {
    if (!code) return await whoIs(before);
    const session = await keep(await redeem(code));
    if (before) end(before);
    return session;
  } catch (refusal) {
    if (before && refusal.status === 401 && !code) sessionStorage.removeItem(place);
    if (code) return resume('').catch(() => Promise.reject(refusal));
    if (!before && (refusal.status === 401 || refusal.status === 429)) refusal.message = '';
    throw refusal;
  }
}

// signIn exchanges an access key for a session that ends by itself, so that the key is kept
// nowhere. One that may not have a session is used as it is.
export async function signIn(key) {
  let path;
  try {
    path = (await ask(key, 'mutation { createSignIn(input: {}) { path } }')).createSignIn.path;
  } catch (refusal) {
    if (refusal.code !== 'FORBIDDEN') throw refusal;
    return keep(key);
  }
  return keep(await redeem(new URL(path, base).hash.slice(1)));
}

// forget takes a key from this tab.
export function forget(key) {
  if (sessionStorage.getItem(place) === key) sessionStorage.removeItem(place);
}

// end ends the session of a key at the server. It returns why that failed, or ''.
export async function end(key) {
  try {
    await post(new URL('sign-out', base), key, {});
    return '';
  } catch (refusal) {
    // A key of one's own is no session, and one that has ended cannot be ended.
    return refusal.status === 409 || refusal.status === 401 ? '' : refusal.message;
  }
}
