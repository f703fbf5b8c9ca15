import { createRoot } from 'react-dom/client';
import { GraphiQL } from 'graphiql';
import { createGraphiQLFetcher } from '@graphiql/toolkit';
import { createClient } from 'graphql-ws';
import './main.css';
import look from './tabs/look.graphql';
import launch from './tabs/launch.graphql';
import launchVariables from './tabs/launch.json';
import watch from './tabs/watch.graphql';
import history from './tabs/history.graphql';

// Monaco asks for a worker by label; each is a file beside the page, so the
// content security policy needs no exception for scripts.
const workers = { json: 'json.js', graphql: 'graphql.js' };
globalThis.MonacoEnvironment = {
  getWorker: (_id, label) =>
    new Worker(new URL(workers[label] ?? 'editor.js', document.baseURI), { type: 'module' }),
};

// The page may be served below a path prefix; the API is its neighbour.
const api = new URL('../graphql', document.baseURI);
const socket = new URL(api);
socket.protocol = api.protocol === 'https:' ? 'wss:' : 'ws:';

const fetcher = createGraphiQLFetcher({
  url: api.href,
  wsClient: createClient({ url: socket.href, lazy: true }),
});

const tabs = [
  { query: look },
  { query: launch, variables: JSON.stringify(launchVariables, null, 2) },
  { query: watch },
  { query: history },
];

createRoot(document.getElementById('console')).render(
  <GraphiQL
    fetcher={fetcher}
    defaultTabs={tabs}
    defaultQuery={look}
    defaultEditorToolsVisibility="variables"
    schemaDescription
  >
    <GraphiQL.Logo>
      <span className="muster-logo">muster</span>
    </GraphiQL.Logo>
  </GraphiQL>,
);
