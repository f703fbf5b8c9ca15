package browsertest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/server"
)

// The places of the page that are looked at.
const (
	panel    = ".muster-panel"
	alert    = ".muster-panel [role=alert]"
	identity = ".muster-identity"
)

// value evaluates an expression on the page.
func value[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// keptKey is the key that the tab keeps, "" for none.
func keptKey(t *testing.T, ctx context.Context) string {
	t.Helper()
	return value[string](t, ctx, `Object.values(sessionStorage).find(v => v.startsWith("muster_")) ?? ""`)
}

// elsewhere is all that the page keeps or shows but sessionStorage. The browser's own
// record of what the tab was opened at is left out: the code is used by then.
func elsewhere(t *testing.T, ctx context.Context) string {
	t.Helper()
	return value[string](t, ctx, `[JSON.stringify(localStorage), document.cookie, location.href, JSON.stringify(history.state),
		document.documentElement.outerHTML, performance.getEntriesByType("resource").map(e => e.name).join()].join("\n")`)
}

// secretOf is the part of a key or code that nobody else may see.
func secretOf(text string) string { return text[strings.LastIndex(text, "_")+1:] }

// holds waits until an expression on the page is true.
func holds(expression string) step {
	return chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(pollTime))
}

func signedInAs(name string, role muster.Role) step {
	return chromedp.Steps(shows(identity, name+" · "+string(role)), chromedp.WaitVisible(`.graphiql-query-editor .view-line`))
}

func TestSignIn_ByLink(t *testing.T) {
	site := serve(t, server.Options{})
	admin := site.adminKey()
	site.register(admin, "rack1-a")
	ctx, _ := open(t)

	do(t, ctx, chromedp.Navigate("http://"+site.addr+"/playground/"), shows(panel, "muster playground"))
	if n := value[int](t, ctx, `document.querySelectorAll("[role=alert]").length`); n != 0 {
		t.Error("it complains before anybody tried")
	}
	screenshot(t, ctx, "5-sign-in")

	// The link opens in the very tab, which loads nothing anew; then in a new page.
	link := site.link(admin)
	do(t, ctx, chromedp.Navigate(link), signedInAs("admin", muster.Admin))
	session := keptKey(t, ctx)
	if session == "" || session == admin {
		t.Fatalf("the tab keeps %q", session)
	}
	do(t, ctx, openTab("Watch"), chromedp.Click(execute), shows(".graphiql-response", `"type": "SYNCED"`))
	site.register(admin, "rack1-b")
	do(t, ctx, shows(".graphiql-response", `"id": "rack1-b"`))
	screenshot(t, ctx, "6-signed-in")

	secrets := map[string]string{"the code": secretOf(link), "the session": secretOf(session), "the admin's key": secretOf(admin)}
	for name, secret := range secrets {
		for place, text := range map[string]string{"the page": elsewhere(t, ctx), "the server's log": site.log.String()} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %s in it", place, name)
			}
		}
	}
	if value[string](t, ctx, `localStorage.planted = "`+secretOf(session)+`"`); !strings.Contains(elsewhere(t, ctx), secretOf(session)) {
		t.Error("a planted secret was not found: the search is worth nothing")
	}

	do(t, ctx, chromedp.Reload(), signedInAs("admin", muster.Admin))
	do(t, ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(site.link(admin)), signedInAs("admin", muster.Admin))
	if again := keptKey(t, ctx); again == "" || again == session {
		t.Errorf("after another link the tab keeps %q, had %q", again, session)
	}
	if hash := value[string](t, ctx, "location.hash"); hash != "" {
		t.Errorf("the address ends with %s", hash)
	}
}

func TestSignIn_BadLinks(t *testing.T) {
	site := serve(t, server.Options{})
	used := site.link(site.adminKey())
	ctx, _ := open(t)
	do(t, ctx, chromedp.Navigate(used), signedInAs("admin", muster.Admin))
	do(t, ctx, chromedp.Evaluate[chromedp.Void]("sessionStorage.clear()"))
	for _, test := range []struct{ name, link string }{
		{"used", used},
		{"cut off", used[:len(used)-4]},
		{"made up", "http://" + site.addr + "/playground/#muster_sign-in_x"},
	} {
		t.Run(test.name, func(t *testing.T) {
			do(t, ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(test.link), shows(alert, "link has been used or is too old"))
			if at := value[string](t, ctx, "location.href"); strings.Contains(at, "#") || keptKey(t, ctx) != "" {
				t.Errorf("it is at %s and keeps %q", at, keptKey(t, ctx))
			}
		})
	}
}

func TestSignIn_ByKey(t *testing.T) {
	site := serve(t, server.Options{})
	viewer := site.create(site.adminKey(), "carol", muster.Viewer)
	registrar := site.create(site.adminKey(), "deployer", muster.Registrar)
	paste := func(text string) step {
		return chromedp.Steps(chromedp.WaitVisible(panel+" input"), chromedp.SendKeys(panel+" input", text), chromedp.Click(panel+" form button"))
	}
	ctx, _ := open(t)
	do(t, ctx, chromedp.Navigate("http://"+site.addr+"/playground/"), paste("let me in"), shows(alert, "key"))
	screenshot(t, ctx, "7-refused")

	do(t, ctx, paste(" "+viewer+" "), signedInAs("carol", muster.Viewer))
	session := keptKey(t, ctx)
	if session == "" || session == viewer {
		t.Errorf("the tab keeps %q of the key %q", session, viewer)
	}
	do(t, ctx, chromedp.Click(execute), shows(".graphiql-response", `"clusterHealth"`))

	do(t, ctx, chromedp.Click(identity+" button"), chromedp.WaitVisible(panel+" input"))
	if keptKey(t, ctx) != "" {
		t.Error("the tab keeps the key after signing out")
	}
	eventually(t, "the session has ended at the server", func() bool {
		_, err := site.as(session).Whoami(t.Context())
		return muster.CodeOf(err) == muster.Unauthenticated
	})
	if _, err := site.as(viewer).Whoami(t.Context()); err != nil {
		t.Errorf("the key that was pasted: %v", err)
	}

	do(t, ctx, paste(registrar), signedInAs("deployer", muster.Registrar))
	if kept := keptKey(t, ctx); kept != registrar {
		t.Errorf("a key that may not have a session is kept as %q", kept)
	}
	do(t, ctx, chromedp.Click(identity+" button"), chromedp.WaitVisible(panel+" input"))
	if _, err := site.as(registrar).Whoami(t.Context()); err != nil {
		t.Errorf("the registrar's key: %v", err)
	}
}

func TestSignIn_EndOfASessionBringsThePanelBack(t *testing.T) {
	site := serve(t, server.Options{})
	admin := site.adminKey()
	ctx, _ := open(t)
	revoke := func() {
		t.Helper()
		me, err := site.as(keptKey(t, ctx)).Whoami(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := site.as(admin).RevokeAccessKey(t.Context(), muster.KeyID(me.ID)); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(why string) {
		t.Helper()
		do(t, ctx, shows(alert, why))
		if kept := keptKey(t, ctx); kept != "" {
			t.Errorf("the tab still keeps %q", kept)
		}
	}

	do(t, ctx, chromedp.Navigate(site.link(admin)), signedInAs("admin", muster.Admin))
	do(t, ctx, openTab("Watch"), chromedp.Click(execute), shows(".graphiql-response", `"type": "SYNCED"`))
	revoke()
	gone("revoked") // by itself: the stream was closed with 4403
	screenshot(t, ctx, "8-revoked")

	do(t, ctx, chromedp.Navigate(site.link(admin)), signedInAs("admin", muster.Admin))
	revoke()
	do(t, ctx, openTab("Look"), chromedp.Click(execute))
	gone("was revoked") // the next request was answered with 401

	do(t, ctx, chromedp.Navigate(site.link(admin)), signedInAs("admin", muster.Admin))
	revoke()
	do(t, ctx, chromedp.Reload())
	gone("was revoked")
}
