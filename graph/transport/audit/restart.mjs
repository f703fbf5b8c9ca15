// Follows the nodes of the server at URL with the npm package graphql-ws from a
// cursor on, over restarts of the server. One line an event and a close.
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';

const client = createClient({
  url: process.argv[2], webSocketImpl: WebSocket, retryAttempts: 1000, shouldRetry: () => true, // also while nobody listens
  retryWait: () => new Promise((done) => setTimeout(done, 50)),
});
let lost = false;
client.on('connected', () => (lost = false));
client.on('closed', (e) => {
  if (!lost) console.log('closed', e.code);
  lost = true;
});
const variables = { since: process.argv[3] };
const query = 'subscription($since: Cursor) { nodeChanges(since: $since) { type revision cursor } }';
for await (const { data } of client.iterate({ query, variables })) {
  const { type, revision, cursor } = data.nodeChanges;
  variables.since = cursor;
  console.log(type, revision);
}
