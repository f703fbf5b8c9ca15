import { useState } from 'react';

// Panel asks who wants in, and says why when somebody was turned out.
export function Panel({ reason, onKey }) {
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const key = new FormData(form).get('key').trim();
    form.reset();
    setBusy(true);
    await onKey(key);
    setBusy(false);
  };
  return (
    <main className="muster-panel">
      <section>
        <h1>muster</h1>
        {reason && <p role="alert">{reason}</p>}
        <h2>Sign in with a link</h2>
        <p>On the server's machine, or wherever you are logged in, run</p>
        <pre>muster playground</pre>
        <p>and open the link that it prints. It is good once.</p>
        <h2>Or with an access key</h2>
        <form onSubmit={submit}>
          <input
            name="key" type="password" required autoComplete="off" spellCheck={false}
            placeholder="Access key" aria-label="Access key"
          />
          <button disabled={busy}>Sign in</button>
        </form>
        <p className="muster-small">
          It is exchanged for a session of at most 12 hours, which this tab alone knows and which ends when you sign out.
        </p>
      </section>
    </main>
  );
}

// Identity says who is signed in.
export function Identity({ session, onSignOut }) {
  if (!session.key) return null;
  const until = session.until && new Date(session.until);
  return (
    <span className="muster-identity">
      <span title={until ? `until ${until.toLocaleString()}` : undefined}>
        <b>{session.name}</b> · {session.role}
      </span>
      <button type="button" onClick={onSignOut}>Sign out</button>
    </span>
  );
}
