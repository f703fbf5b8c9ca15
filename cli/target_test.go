package cli_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/cli"
	"github.com/muster-cloud/muster/local"
	"github.com/muster-cloud/muster/registry/auth"
)

// witness is a server that notes what is presented to it.
type witness struct {
	url  string
	mu   sync.Mutex
	keys []string
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	w := new(witness)
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.keys = append(w.keys, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		out.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(out, `{"data": {"nodes": {"edges": []}, "whoami": {"id": "k-1", "name": "me", "role": "VIEWER"}}}`)
	}))
	t.Cleanup(s.Close)
	w.url = s.URL
	return w
}

// seen are the keys that were presented since it was asked last; "" is none.
func (w *witness) seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.keys = nil }()
	return strings.Join(w.keys, " ")
}

// desk is a user's home, with what is in it.
type desk struct {
	t   *testing.T
	dir string
	env map[string]string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, dir: t.TempDir()}
	if err := os.Mkdir(d.path("run"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.env = map[string]string{"HOME": d.dir, "MUSTER_RUN_DIR": d.path("run"), "MUSTER_TIMEOUT": "5s"}
	return d
}

func (d *desk) path(name string) string { return filepath.Join(d.dir, name) }

func (d *desk) write(name, text string, mode os.FileMode) string {
	d.t.Helper()
	path := d.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		d.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		d.t.Fatal(err)
	}
	return path
}

// announce has a server be one of this machine's, with a key of the first start.
func (d *desk) announce(url string, key auth.Key, mode os.FileMode) {
	d.t.Helper()
	addr, err := netip.ParseAddrPort(strings.TrimPrefix(url, "http://"))
	if err != nil {
		d.t.Fatal(err)
	}
	lookup := func(name string) (string, bool) { v, ok := d.env[name]; return v, ok }
	withdraw, err := local.Announce(lookup, local.Server{Addr: addr, KeyFile: d.write("admin.key", key.Text()+"\n", mode)})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(withdraw)
}

func (d *desk) run(in string, env map[string]string, args ...string) (code int, out, said string) {
	var stdout, stderr bytes.Buffer
	all := maps.Clone(d.env)
	maps.Copy(all, env)
	code = cli.Main(context.Background(), args, cli.Std{
		Program: "muster", In: strings.NewReader(in), Out: &stdout, Err: &stderr,
		LookupEnv: func(name string) (string, bool) { value, ok := all[name]; return value, ok },
	})
	return code, stdout.String(), stderr.String()
}

func newKey(id string) auth.Key { return auth.Key{ID: id, Secret: auth.NewSecret()} }

func TestKey_GoesToItsServerAlone(t *testing.T) {
	d, here, there := newDesk(t), newWitness(t), newWitness(t)
	own, other, given, filed := newKey("k-1"), newKey("k-2"), newKey("k-3"), newKey("k-4")
	for name, login := range map[string]struct {
		to  *witness
		key auth.Key
	}{"there": {there, other}, "here": {here, own}} {
		if code, _, said := d.run(login.key.Text()+"\n", nil, "login", login.to.url, "--name", name); code != 0 {
			t.Fatal(said)
		}
	}
	d.run("", nil, "context", "use", "here")
	here.seen()
	there.seen()
	file := d.write("file.key", filed.Text(), 0o600)
	elsewhere := strings.Replace(there.url, "127.0.0.1", "localhost", 1)
	for name, c := range map[string]struct {
		env         map[string]string
		args        []string
		here, there string // what was presented
		asked       *witness
	}{
		"the current context":                   {nil, nil, own.Text(), "", here},
		"its server by --server":                {nil, []string{"--server", here.url + "/graphql"}, own.Text(), "", here},
		"its server by MUSTER_SERVER":           {map[string]string{"MUSTER_SERVER": here.url}, nil, own.Text(), "", here},
		"another server by --server":            {nil, []string{"--server", there.url}, "", "", there},
		"another server by MUSTER_SERVER":       {map[string]string{"MUSTER_SERVER": there.url}, nil, "", "", there},
		"another name of its server":            {map[string]string{"MUSTER_CONTEXT": "there"}, []string{"--server", elsewhere}, "", "", there},
		"--context":                             {nil, []string{"--context", "there"}, "", other.Text(), there},
		"MUSTER_CONTEXT":                        {map[string]string{"MUSTER_CONTEXT": "there"}, nil, "", other.Text(), there},
		"--context over MUSTER_SERVER":          {map[string]string{"MUSTER_SERVER": here.url}, []string{"--context", "there"}, "", other.Text(), there},
		"MUSTER_SERVER over MUSTER_CONTEXT":     {map[string]string{"MUSTER_SERVER": here.url, "MUSTER_CONTEXT": "there"}, nil, "", "", here},
		"MUSTER_KEY over the context":           {map[string]string{"MUSTER_KEY": given.Text()}, nil, given.Text(), "", here},
		"MUSTER_KEY over --key-file":            {map[string]string{"MUSTER_KEY": given.Text()}, []string{"--key-file", file}, given.Text(), "", here},
		"--key-file over the context":           {nil, []string{"--key-file", file}, filed.Text(), "", here},
		"MUSTER_KEY_FILE":                       {map[string]string{"MUSTER_KEY_FILE": file}, nil, filed.Text(), "", here},
		"MUSTER_KEY for a server that is named": {map[string]string{"MUSTER_KEY": given.Text()}, []string{"--server", there.url}, "", given.Text(), there},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, said := d.run("", c.env, append([]string{"node", "list"}, c.args...)...)
			gotHere, gotThere := here.seen(), there.seen()
			if code != 0 || gotHere != c.here || gotThere != c.there {
				t.Errorf("it ended with %d, said %q, and presented %q here and %q there", code, said, gotHere, gotThere)
			}
			if len(said) > 0 {
				t.Errorf("it said %q", said)
			}
		})
	}
	if code, _, said := d.run("", nil, "node", "list", "--context", "there", "--server", here.url); code != 2 || !strings.Contains(said, "leave one of them out") {
		t.Errorf("a context of another server: it ended with %d and said %q", code, said)
	}
}

func TestKey_OfTheServerOfThisMachine(t *testing.T) {
	d, here, there := newDesk(t), newWitness(t), newWitness(t)
	first := newKey("k-1")
	d.announce(here.url, first, 0o600)
	u, err := url.Parse(here.url)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ server, here, there string }{
		"by its address":                   {here.url, first.Text(), ""},
		"by the name of loopback":          {"http://localhost:" + u.Port(), first.Text(), ""},
		"another one of this machine":      {there.url, "", ""},
		"the only one, when none is named": {"", first.Text(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"node", "list"}
			if c.server != "" {
				args = append(args, "--server", c.server)
			}
			code, _, said := d.run("", nil, args...)
			if gotHere, gotThere := here.seen(), there.seen(); code != 0 || gotHere != c.here || gotThere != c.there {
				t.Errorf("it ended with %d, said %q, and presented %q here and %q there", code, said, gotHere, gotThere)
			}
		})
	}
}

// TestKey_IsRefusedBeforeAnybodySeesIt: files that others can read, and what is no key.
func TestKey_IsRefusedBeforeAnybodySeesIt(t *testing.T) {
	key := newKey("k-1")
	for name, c := range map[string]struct {
		prepare func(d *desk, url string) (env map[string]string)
		want    string
	}{
		"a key file that others can read": {func(d *desk, _ string) map[string]string {
			return map[string]string{"MUSTER_KEY_FILE": d.write("k", key.Text(), 0o644)}
		}, "can be read by others than its owner (mode 0644): run chmod 600 "},
		"a first key that others can read": {func(d *desk, url string) map[string]string {
			d.announce(url, key, 0o640)
			return nil
		}, "can be read by others than its owner (mode 0640): run chmod 600 "},
		"contexts that others can read": {func(d *desk, url string) map[string]string {
			d.write(".config/muster/config.yaml", "current: x\ncontexts:\n- {name: x, server: '"+url+"', key: "+key.Text()+"}\n", 0o604)
			return nil
		}, "can be read by others than its owner (mode 0604): run chmod 600 "},
		"contexts that are none": {func(d *desk, _ string) map[string]string {
			d.write(".config/muster/config.yaml", "contexts: ["+key.Text(), 0o600)
			return nil
		}, "config.yaml is not as muster login writes it: repair it, or remove it and log in again"},
		"a key with a typo": {func(*desk, string) map[string]string {
			return map[string]string{"MUSTER_KEY": key.Text()[:40]}
		}, "MUSTER_KEY: this is an access key with a typo, or not all of one: copy all of it again"},
		"a join token": {func(*desk, string) map[string]string {
			return map[string]string{"MUSTER_KEY": auth.JoinToken{ID: "t-1", Secret: auth.NewSecret()}.Text()}
		}, "MUSTER_KEY: this is a join token, not an access key: "},
		"no key file": {func(d *desk, _ string) map[string]string {
			return map[string]string{"MUSTER_KEY_FILE": d.path("none")}
		}, "there is no key file "},
		"a context that there is not": {func(*desk, string) map[string]string {
			return map[string]string{"MUSTER_CONTEXT": "prod"}
		}, `there is no context "prod", and no other: make one with muster login URL`},
	} {
		t.Run(name, func(t *testing.T) {
			d, w := newDesk(t), newWitness(t)
			env := c.prepare(d, w.url)
			code, out, said := d.run("", env, "node", "list", "--server", w.url)
			if code == 0 || !strings.Contains(said, c.want) || out != "" {
				t.Errorf("it ended with %d, printed %q and said %q", code, out, said)
			}
			if strings.Contains(said, key.Text()[10:30]) {
				t.Errorf("it told the key: %q", said)
			}
			if got := w.seen(); got != "" {
				t.Errorf("it presented %q", got)
			}
		})
	}
}

func TestLogin_AsksOnATerminalWithoutShowingTheKey(t *testing.T) {
	d, w := newDesk(t), newWitness(t)
	key := newKey("k-1")
	screen, typed, read := keyboard(t, 200)
	done := make(chan int)
	var out bytes.Buffer
	go func() {
		done <- cli.Main(context.Background(), []string{"login", w.url}, cli.Std{
			Program: "muster", In: screen, Out: &out, Err: screen, LookupEnv: func(name string) (string, bool) { v, ok := d.env[name]; return v, ok },
		})
	}()
	quiet := func() bool {
		state, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
		return err == nil && state.Lflag&unix.ECHO == 0
	}
	for deadline := time.Now().Add(10 * time.Second); !quiet(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the terminal shows what is typed")
		}
	}
	if _, err := typed.WriteString(key.Text() + "\n"); err != nil {
		t.Fatal(err)
	}
	code := <-done
	if quiet() {
		t.Error("it left the terminal quiet")
	}
	shown := read()
	if code != 0 || strings.Contains(shown, key.Text()[10:30]) || w.seen() != key.Text() || !strings.Contains(shown, "Access key for "+w.url+": ") {
		t.Errorf("it ended with %d and showed %q", code, shown)
	}
	if want := "logged in to " + w.url + " as me (k-1, VIEWER); the context is 127.0.0.1\n"; out.String() != want {
		t.Errorf("it printed %q, want %q", out.String(), want)
	}
	if info, err := os.Stat(d.path(".config/muster/config.yaml")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestLogin_KeepsNothingThatWasRefused(t *testing.T) {
	d := newDesk(t)
	refuses := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(out, `{"errors": [{"message": "no; ask", "extensions": {"code": "UNAUTHENTICATED"}}]}`)
	}))
	defer refuses.Close()
	for name, c := range map[string]struct{ in, want string }{
		"a key that is not good": {newKey("k-1").Text(), "muster: no; ask (the key is from this login)\n"},
		"no key":                 {"", "muster: there was no access key on standard input; type it when asked, or write muster login URL <FILE\n"},
		"no key at all":          {"hello", "muster: this is not an access key: one begins with muster_\n"},
	} {
		code, _, said := d.run(c.in, nil, "login", refuses.URL)
		if code == 0 || said != c.want {
			t.Errorf("%s: it ended with %d and said %q", name, code, said)
		}
	}
	if _, err := os.Stat(d.path(".config")); err == nil {
		t.Error("something was kept")
	}
}
