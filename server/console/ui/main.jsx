import { api, end, forget, headersOf, linked, reasonOf, resume, signIn, takeCode } from './session.js';
import { useCallback, useEffect, useMemo, useState } from 'react';
import { createRoot } from 'react-dom/client';
import { GraphiQL } from 'graphiql';
import { createGraphiQLFetcher } from '@graphiql/toolkit';
import { createClient } from 'graphql-ws';
import { Identity, Panel } from './panel.jsx';
import './main.css';
import look from './tabs/look.graphql';
import launch from './tabs/launch.graphql';
import launchVariables from './tabs/launch.json';
import deploy from './tabs/deploy.graphql';
import deployVariables from './tabs/deploy.json';
import watch from './tabs/watch.graphql';
import history from './tabs/history.graphql';

// Monaco asks for a worker by label; each is a file beside the page, so the
// content security policy needs no exception for scripts.
const workers = { json: 'json.js', graphql: 'graphql.js' };
globalThis.MonacoEnvironment = {
  getWorker: (_id, label) =>
    new Worker(new URL(workers[label] ?? 'editor.js', document.baseURI), { type: 'module' }),
};

const socket = new URL(api);
socket.protocol = api.protocol === 'https:' ? 'wss:' : 'ws:';

const forbidden = 4403; // the close code of a key that is good no more

// connect makes the API's client for a session; ended is told when it is over, and why.
function connect(session, ended) {
  const headers = headersOf(session.key);
  const wsClient = createClient({
    url: socket.href,
    lazy: true,
    connectionParams: headers,
    shouldRetry: (event) => 'code' in event && event.code !== forbidden,
    on: { closed: (event) => event.code === forbidden && ended(session, event.reason) },
  });
  const fetcher = createGraphiQLFetcher({
    url: api.href,
    headers,
    wsClient,
    fetch: async (url, init) => {
      const response = await fetch(url, { ...init, credentials: 'omit', redirect: 'error' });
      if (response.status === 401) ended(session, await reasonOf(response.clone()));
      return response;
    },
  });
  return { fetcher, close: () => wsClient.dispose() };
}

const tabs = [
  { query: look },
  { query: launch, variables: JSON.stringify(launchVariables, null, 2) },
  { query: deploy, variables: JSON.stringify(deployVariables, null, 2) },
  { query: watch },
  { query: history },
];

// Editor is GraphiQL for a session. Its editor of headers is left out: a key that was typed
// there would stay in the browser.
function Editor({ session, onEnd, onSignOut }) {
  const connection = useMemo(() => connect(session, onEnd), [session, onEnd]);
  useEffect(() => connection.close, [connection]);
  return (
    <GraphiQL
      fetcher={connection.fetcher}
      defaultTabs={tabs}
      defaultQuery={look}
      defaultEditorToolsVisibility="variables"
      isHeadersEditorEnabled={false}
      showPersistHeadersSettings={false}
      schemaDescription
    >
      <GraphiQL.Logo>
        <Identity session={session} onSignOut={onSignOut} />
        <span className="muster-logo">muster</span>
      </GraphiQL.Logo>
    </GraphiQL>
  );
}

// Console shows the editor to who is in, and else the panel.
function Console() {
  const [{ session, reason }, setState] = useState({});
  const enter = useCallback(
    (entering) => entering.then((s) => setState({ session: s }), (refusal) => setState({ reason: refusal.message })),
    [],
  );
  const leave = useCallback((left, why) => {
    forget(left.key);
    setState((now) => (now.session === left ? { reason: why } : now)); // another may be in by now
  }, []);
  const signOut = async () => {
    leave(session, '');
    const trouble = await end(session.key);
    if (trouble) setState({ reason: `You are signed out here, but the server was not told, and the session ends only with its time: ${trouble}` });
  };

  useEffect(() => {
    enter(resume(linked));
    const follow = () => { // a link that was pasted into this very tab
      const code = takeCode();
      if (code) enter(resume(code));
    };
    addEventListener('hashchange', follow);
    return () => removeEventListener('hashchange', follow);
  }, [enter]);

  if (session) return <Editor key={session.key} session={session} onEnd={leave} onSignOut={signOut} />;
  if (reason === undefined) return 'Loading…';
  return <Panel reason={reason} onKey={(key) => enter(signIn(key))} />;
}

createRoot(document.getElementById('console')).render(<Console />);
