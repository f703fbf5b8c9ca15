// The npm package graphql-ws against URL: query, error, watch, resume after the
// connection is cut, ping. One line a step. Changes 2 to 10 follow the cursor.
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';

const client = createClient({ url: process.argv[2], webSocketImpl: WebSocket, keepAlive: 50, retryAttempts: 3, retryWait: async () => {} });
let socket;
let pongs = 0;
client.on('opened', (s) => (socket = s));
client.on('pong', (received) => received && pongs++);

const run = async (query, variables) => {
  const got = [];
  try {
    for await (const { data, errors } of client.iterate({ query, variables })) {
      if (errors) throw errors;
      got.push(data);
    }
  } catch (errors) {
    return errors.map((e) => e.extensions.code).join();
  }
  return JSON.stringify(got);
};
console.log('query', await run('{ serverInfo { revision } }'));
console.log('error', await run('{ nope }'));
console.log('refused', await run('mutation { cordonNode(input: {id: "nosuch"}) { revision } }'));

const document = 'subscription($since: Cursor) { nodeChanges(since: $since) { type revision cursor } }';
const seen = [];
const variables = { since: process.argv[3] };
let cut = false;
for await (const { data } of client.iterate({ query: document, variables })) {
  const { type, revision, cursor } = data.nodeChanges;
  variables.since = cursor; // graphql-ws sends the payload again when it reconnects
  if (type !== 'CHANGE') continue;
  seen.push(revision);
  if (revision === 5 && !cut) {
    cut = true;
    socket.terminate();
  }
  if (revision === 10) break;
}
console.log('watched', seen.join());

const quiet = client.iterate({ query: document, variables });
await quiet.next(); // SYNCED
while (pongs === 0) await new Promise((done) => setTimeout(done, 10));
await quiet.return();
console.log('pong');
await client.dispose();
