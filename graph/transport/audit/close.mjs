// What the npm package graphql-ws does after each close code that the server at URL
// can be brought to send: once is final, or it connects again and goes on. CODE...
// are those to bring about. One line a code.
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';

const [url, ...codes] = process.argv.slice(2);
const query = 'subscription { nodeChanges(initial: false) { type } }';
const subscribe = JSON.stringify({ id: 'x', type: 'subscribe', payload: { query } });
const later = (ms) => new Promise((done) => setTimeout(done, ms));
class WithoutSubprotocol extends WebSocket {
  constructor(address) {
    super(address);
  }
}

// Each misbehaves on the first connection only; first() says whether that is now.
const ways = {
  1009: (first) => ({ on: { connected: (s) => first() && s.send('x'.repeat(2 << 20)) } }),
  1013: () => ({}), // as many connections as one caller may have are taken
  4400: (first) => ({ on: { connected: (s) => first() && s.send('garbage') } }),
  4401: (first) => ({ on: { opened: (s) => first() && s.send(subscribe) }, connectionParams: () => (first() ? later(2000) : {}) }),
  4406: () => ({ webSocketImpl: WithoutSubprotocol }),
  4408: (first) => ({ connectionParams: () => (first() ? later(60000) : {}) }),
  4409: (first) => ({ on: { connected: (s) => first() && (s.send(subscribe), s.send(subscribe)) } }),
  4429: (first) => ({ on: { connected: (s) => first() && s.send('{"type":"connection_init"}') } }),
  503: () => ({ shouldRetry: () => true }), // as many connections as there may be are taken; no close code, which is final unless told otherwise
};

const taken = async () => {
  const socket = new WebSocket(url, 'graphql-transport-ws');
  await new Promise((done) => (socket.onopen = done));
  socket.send('{"type":"connection_init"}');
  await new Promise((done) => (socket.onmessage = done));
  return socket;
};

for (const code of codes) {
  let attempts = 0;
  let closed;
  const occupant = code === '1013' || code === '503' ? await taken() : undefined;
  const { on, ...options } = ways[code](() => attempts === 1);
  const client = createClient({
    url, webSocketImpl: WebSocket, retryAttempts: 2, ...options,
    retryWait: async () => {
      occupant?.close();
      await later(100);
    },
    on: { ...on, connecting: () => attempts++, closed: (e) => (closed ??= e.code) },
  });
  let outcome = 'final';
  try {
    for await (const _ of client.iterate({ query })) {
      if (attempts === 1) continue; // before the close came
      outcome = 'goes on';
      break;
    }
  } catch (e) {
    if (e?.code !== closed) outcome = `failed with ${e?.code ?? e?.message ?? e}`;
  }
  console.log(code, 'closed with', closed, outcome);
  await client.dispose();
}
process.exit(0); // what is still waiting for a hello need not end
