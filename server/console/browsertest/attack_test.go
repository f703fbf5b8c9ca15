package browsertest_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/muster-cloud/muster/server"
)

// attack is something that a page tries. It evaluates to the status and the text of an
// answer that the page can read, or to what it sees instead.
type attack struct {
	name   string
	script string
	own    string // what a page of the server itself gets: the call would work
}

// attacks may use what the prelude of try names.
func attacks() []attack {
	const told = `.then(async r => r.type === "opaque" ? "opaque" : r.status + " " + await r.text())`
	return []attack{
		{"a mutation as text", `fetch(base + "/graphql", {method: "POST", mode: "no-cors", body: create("text")})` + told, "4"},
		{"a mutation as a form", `fetch(base + "/graphql", {method: "POST", mode: "no-cors", body: new URLSearchParams({query: create("form")})})` + told, "4"},
		{"a mutation as JSON", `fetch(base + "/graphql", {method: "POST", headers: {...auth, "content-type": "application/json"}, body: create("json")})` + told, `200 {"data":{"createAccessKey":{"text":"muster_`},
		{"a mutation by GET", `fetch(base + "/graphql?query=" + encodeURIComponent(JSON.parse(create("get")).query), {headers: auth})` + told, "405 "},
		{"a query by GET", `fetch(base + "/graphql?query={serverInfo{version}}", {headers: auth})` + told, `200 {"data":{"serverInfo":`},
		{"a query without an answer", `fetch(base + "/graphql?query={serverInfo{version}}", {mode: "no-cors"})` + told, ""},
		{"a beacon", `navigator.sendBeacon(base + "/graphql", create("beacon")) + ""`, "true"},
		{"a WebSocket", `new Promise(done => {
			const socket = new WebSocket(base.replace("http", "ws") + "/graphql", "graphql-transport-ws");
			socket.onopen = () => socket.send(JSON.stringify({type: "connection_init", payload: auth}));
			socket.onmessage = m => { socket.close(); done("200 " + m.data); };
			socket.onerror = () => done("refused");
		})`, `200 {"type":"connection_ack"}`},
		{"an image", `fetch(base + "/images/evil", {method: "PUT", headers: auth, body: archive})` + told, `200 {`},
		{"a sign-in as text", `fetch(base + "/sign-in", {method: "POST", mode: "no-cors", body: JSON.stringify({code})})` + told, "4"},
		{"a sign-in as JSON", `fetch(base + "/sign-in", {method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify({code})})` + told, `200 {"key":"muster_`},
		{"a sign-out", `fetch(base + "/sign-out", {method: "POST", headers: auth})` + told, ""},
	}
}

// stand is a server under attack, with what a page may know at the very most: a key and a
// code that are good.
type stand struct {
	*site
	key, code string
}

func newStand(t *testing.T, o server.Options) *stand {
	t.Helper()
	s := &stand{site: serve(t, o)}
	if !o.Keyless {
		s.key = s.adminKey()
	}
	_, s.code, _ = strings.Cut(s.link(s.key), "#")
	return s
}

// archive is an image with one file.
func archive(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "etc/hostname", Size: 4, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("evil")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

// try runs an attack on what is at base from the page that is open.
func (s *stand) try(t *testing.T, ctx context.Context, base string, a attack) string {
	t.Helper()
	script := fmt.Sprintf(`(async () => {
		const base = %q, key = %q, code = %q, auth = key ? {authorization: "Bearer " + key} : {};
		const archive = Uint8Array.from(atob(%q), c => c.charCodeAt(0));
		const create = name => JSON.stringify({query: 'mutation { createAccessKey(input: {name: "' + name + '", role: ADMIN}) { text } }'});
		try { return await (%s); } catch (e) { return "refused: " + e.message; }
	})()`, base, s.key, s.code, archive(t), a.script)
	v, err := chromedp.Run(ctx, chromedp.Evaluate[string](script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// untouched checks that no attack has left anything.
func (s *stand) untouched(t *testing.T) {
	t.Helper()
	if left := s.traces(t); len(left) != 0 {
		t.Errorf("attacks have left %q", left)
	}
}

// traces are the keys and images that attacks have made.
func (s *stand) traces(t *testing.T) (left []string) {
	t.Helper()
	for key, err := range s.as(s.key).AllAccessKeys(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if key.Name != "admin" {
			left = append(left, key.Name)
		}
	}
	for image, err := range s.as(s.key).AllImages(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, image.Name)
	}
	slices.Sort(left)
	return left
}

// refused runs all attacks and checks that the server has answered each of them with one
// of the statuses.
func (s *stand) refused(t *testing.T, ctx context.Context, j *journal, base string, statuses ...int) {
	t.Helper()
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			before := len(j.answered(base))
			got := s.try(t, ctx, base, a)
			if strings.HasPrefix(got, "200 ") || strings.Contains(got, "muster_") {
				t.Errorf("the page got %.200s", got)
			}
			var answers []int
			eventually(t, "the server has answered; the page saw "+got, func() bool {
				answers = j.answered(base)[before:]
				return len(answers) > 0
			})
			for _, status := range answers {
				if !slices.Contains(statuses, status) {
					t.Errorf("the server answered %d; the page saw %.200s", status, got)
				}
			}
		})
	}
	s.untouched(t)
}

// works runs all attacks from a page of the server's own: what is refused to others is
// refused because of what they are.
func (s *stand) works(t *testing.T, ctx context.Context, base string) {
	t.Helper()
	for _, a := range attacks() {
		t.Run(a.name, func(t *testing.T) {
			if got := s.try(t, ctx, base, a); !strings.HasPrefix(got, a.own) {
				t.Errorf("the page got %.200s, not %s", got, a.own)
			}
		})
	}
	if left := s.traces(t); !slices.Equal(left, []string{"browser", "evil", "json"}) {
		t.Errorf("a page of its own has left %q", left)
	}
}

// protocols are those that the server is attacked by: in the open it asks for no key, by
// TLS it does, and the page has a good one.
func protocols() map[string]server.Options {
	return map[string]server.Options{"http": {Keyless: true}, "https": {TLS: true}}
}

// names are the sites of the attackers and of others, all of them on this machine. No
// certificate is believed to be anybody's, and each is taken: what is tested is that the
// server holds where certificates don't help.
func names() []chromedp.ExecAllocatorOption {
	return []chromedp.ExecAllocatorOption{
		chromedp.Flag("host-resolver-rules", "MAP evil.example 127.0.0.1, MAP ops.example 127.0.0.1, MAP muster.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("ignore-certificate-errors", true),
	}
}

func TestAttack_PagesOfOtherOrigins(t *testing.T) {
	for scheme, o := range protocols() {
		t.Run(scheme, func(t *testing.T) {
			page := attacker(t, false)
			o.AllowedOrigins = []string{"http://ops.example" + port(page)}
			s := newStand(t, o)
			base := scheme + "://" + s.addr
			ctx, j := open(t, names()...)
			for name, url := range map[string]string{
				"another site":         "http://evil.example" + port(page) + "/",
				"another port":         "http://" + page + "/",
				"no origin of its own": "http://evil.example" + port(page) + "/sandbox",
			} {
				t.Run(name, func(t *testing.T) {
					do(t, ctx, chromedp.Navigate(url))
					s.refused(t, ctx, j, base, 403, 405)
				})
			}
			t.Run("a form", func(t *testing.T) { s.form(t, ctx, base, "http://evil.example"+port(page)+"/") })
			t.Run("a frame", func(t *testing.T) { s.frame(t, ctx, j, base, "http://evil.example"+port(page)+"/") })
			t.Run("an allowed origin", func(t *testing.T) { s.allowed(t, ctx, base, "http://ops.example"+port(page)+"/") })
			t.Run("its own", func(t *testing.T) {
				do(t, ctx, chromedp.Navigate(base+"/playground/"))
				s.works(t, ctx, base)
			})
		})
	}
}

// form submits a form, which leads the page itself to the answer.
func (s *stand) form(t *testing.T, ctx context.Context, base, url string) {
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded"} {
		do(t, ctx, chromedp.Navigate(url), chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`{
			const form = document.createElement("form"), field = document.createElement("input");
			Object.assign(form, {method: "POST", action: %q + "/graphql", enctype: %q});
			Object.assign(field, {name: '{"query":"mutation { createAccessKey(input: {name: \\"form\\", role: ADMIN}) { text } }","x":"', value: '"}'});
			form.append(field); document.body.append(form); setTimeout(() => form.submit());
		}`, base, kind)))
		eventually(t, "the form leads to a refusal", func() bool { // no poll on the page lives through that
			text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
			return err == nil && strings.Contains(text, "this page's origin may not call the server")
		})
	}
	s.untouched(t)
}

// frame shows the playground within another page.
func (s *stand) frame(t *testing.T, ctx context.Context, j *journal, base, url string) {
	do(t, ctx, chromedp.Navigate(url), chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`{
		const frame = document.createElement("iframe"); frame.src = %q + "/playground/"; document.body.append(frame);
	}`, base)))
	eventually(t, "the browser refuses to show the playground", func() bool { return j.says("frame-ancestors 'none'") })
}

// allowed makes the calls that a page of an allowed origin is let in for.
func (s *stand) allowed(t *testing.T, ctx context.Context, base, url string) {
	do(t, ctx, chromedp.Navigate(url))
	for _, a := range attacks() {
		if a.name == "a query by GET" || a.name == "a WebSocket" {
			if got := s.try(t, ctx, base, a); !strings.HasPrefix(got, a.own) {
				t.Errorf("%s: the page got %.200s, not %s", a.name, got, a.own)
			}
		}
	}
}

func TestAttack_NamesThatResolveAnew(t *testing.T) {
	for scheme, o := range protocols() {
		t.Run(scheme, func(t *testing.T) {
			o.AllowedHosts = []string{"muster.example"}
			s := newStand(t, o)
			ctx, j := open(t, names()...)
			page := attacker(t, scheme == "https")
			rebind := func(name string) (base string) {
				relay := newRebinder(t, page)
				base = scheme + "://" + name + port(relay.addr)
				do(t, ctx, chromedp.Navigate(base+"/"), holds(`document.title === "a page"`))
				relay.point(s.addr)
				return base
			}
			t.Run("a stranger's", func(t *testing.T) {
				base := rebind("evil.example")
				s.refused(t, ctx, j, base, 421)
				do(t, ctx, chromedp.Navigate(base+"/playground/"), shows("body", "is not served here"))
			})
			t.Run("one that is served", func(t *testing.T) { s.works(t, ctx, rebind("muster.example")) })
		})
	}
}
