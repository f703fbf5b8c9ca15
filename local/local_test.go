package local_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/local"
)

// environment is one of its own: nothing of this machine is in it.
func environment(t *testing.T) (lookup local.Lookup, home string) {
	t.Helper()
	dir := t.TempDir()
	return func(name string) (string, bool) {
		if name == "XDG_RUNTIME_DIR" || name == "HOME" {
			return dir, true
		}
		return "", false
	}, filepath.Join(dir, "muster")
}

// at is a port that no server of this machine announces.
func at(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// found are the servers of the test: others may run on this machine.
func found(lookup local.Lookup, keyFile string) []local.Server {
	var own []local.Server
	for _, s := range local.Servers(lookup) {
		if s.KeyFile == keyFile {
			own = append(own, s)
		}
	}
	return own
}

func announce(t *testing.T, lookup local.Lookup, keyFile string) (path string, withdraw func()) {
	t.Helper()
	if err := os.WriteFile(keyFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := local.Server{Addr: at(t, "127.0.0.1:1"), KeyFile: keyFile, CAFile: "/ca.crt"}
	withdraw, err := local.Announce(lookup, s)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(local.Home(lookup), "127.0.0.1:1-*.server"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("it made %v, %v", paths, err)
	}
	return paths[0], withdraw
}

func TestAnnounce_UntilItIsWithdrawn(t *testing.T) {
	lookup, home := environment(t)
	keyFile := filepath.Join(t.TempDir(), "admin.key")
	path, withdraw := announce(t, lookup, keyFile)
	servers := found(lookup, keyFile)
	if len(servers) != 1 || servers[0].Addr.String() != "127.0.0.1:1" || servers[0].CAFile != "/ca.crt" || servers[0].PID != os.Getpid() {
		t.Fatalf("it found %+v", servers)
	}
	for name, mode := range map[string]os.FileMode{home: 0o755, path: 0o644} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm()&^mode != 0 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	withdraw()
	withdraw()
	if servers := found(lookup, keyFile); len(servers) != 0 {
		t.Errorf("after it was withdrawn it found %+v", servers)
	}
}

func TestWithdraw_LeavesTheAnnouncementOfASuccessor(t *testing.T) {
	lookup, _ := environment(t)
	_, first := announce(t, lookup, filepath.Join(t.TempDir(), "one"))
	second := filepath.Join(t.TempDir(), "two")
	announce(t, lookup, second)
	first()
	if servers := found(lookup, second); len(servers) != 1 {
		t.Errorf("it found %+v", servers)
	}
}

// TestServers_BelieveOnlyWhoLivesAndMay changes what was announced in each way that
// must end it. The case that changes nothing is the control.
func TestServers_BelieveOnlyWhoLivesAndMay(t *testing.T) {
	rewrite := func(change func(*local.Server)) func(*testing.T, string, string) {
		return func(t *testing.T, path, _ string) {
			t.Helper()
			var s local.Server
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			change(&s)
			if text, err = json.Marshal(s); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	mode := func(mode os.FileMode, of func(path string) string) func(*testing.T, string, string) {
		return func(t *testing.T, path, _ string) {
			t.Helper()
			if err := os.Chmod(of(path), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	itself := func(path string) string { return path }
	cases := map[string]struct {
		change func(t *testing.T, path, keyFile string)
		want   int
	}{
		"nothing":                {rewrite(func(*local.Server) {}), 1},
		"no key file yet":        {func(t *testing.T, _, keyFile string) { _ = os.Remove(keyFile) }, 1},
		"another start":          {rewrite(func(s *local.Server) { s.Started++ }), 0},
		"a process that is gone": {rewrite(func(s *local.Server) { s.PID = 1 << 22 }), 0},
		"no process":             {rewrite(func(s *local.Server) { s.PID = -1 }), 0},
		"another network":        {rewrite(func(s *local.Server) { s.Network = "net:[1]" }), 0},
		"others may change it":   {mode(0o666, itself), 0},
		"others may add to it":   {mode(0o777, filepath.Dir), 0},
		"a link": {func(t *testing.T, path, _ string) {
			elsewhere := filepath.Join(t.TempDir(), "elsewhere")
			if err := os.Rename(path, elsewhere); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(elsewhere, path); err != nil {
				t.Fatal(err)
			}
		}, 0},
		"no announcement": {func(t *testing.T, path, _ string) {
			if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
				t.Fatal(err)
			}
		}, 0},
	}
	if os.Geteuid() == 0 { // nobody else can give a file away
		give := func(of func(path, keyFile string) string) func(*testing.T, string, string) {
			return func(t *testing.T, path, keyFile string) {
				if err := os.Lchown(of(path, keyFile), 12345, 12345); err != nil {
					t.Fatal(err)
				}
			}
		}
		type change = struct {
			change func(t *testing.T, path, keyFile string)
			want   int
		}
		cases["somebody else's file"] = change{give(func(path, _ string) string { return path }), 0}
		cases["somebody else's directory"] = change{give(func(path, _ string) string { return filepath.Dir(path) }), 0}
		cases["somebody else's key"] = change{give(func(_, keyFile string) string { return keyFile }), 0}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			lookup, _ := environment(t)
			keyFile := filepath.Join(t.TempDir(), "admin.key")
			path, _ := announce(t, lookup, keyFile)
			c.change(t, path, keyFile)
			if servers := found(lookup, keyFile); len(servers) != c.want {
				t.Errorf("it found %+v", servers)
			}
		})
	}
}

func TestAnnounce_RefusesADirectoryThatOthersMayChange(t *testing.T) {
	lookup, home := environment(t)
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Announce(lookup, local.Server{Addr: at(t, "127.0.0.1:1")}); muster.CodeOf(err) != muster.Forbidden {
		t.Errorf("it said %v", err)
	}
}

func TestAnnounce_TakesAwayWhatTheDeadLeftBehind(t *testing.T) {
	lookup, home := environment(t)
	announce(t, lookup, filepath.Join(t.TempDir(), "one"))
	dead := filepath.Join(home, "127.0.0.1:2.server")
	if err := os.WriteFile(dead, []byte(`{"addr": "127.0.0.1:2", "pid": 4194304}`), 0o644); err != nil {
		t.Fatal(err)
	}
	path, _ := announce(t, lookup, filepath.Join(t.TempDir(), "two"))
	entries, err := os.ReadDir(home)
	if err != nil || len(entries) != 1 || filepath.Join(home, entries[0].Name()) != path {
		t.Errorf("%v are left, %v", entries, err)
	}
}

// A server of another network namespace is none of this one's, and not dead either.
func TestAnnounce_LeavesTheLivingOfAnotherNetwork(t *testing.T) {
	lookup, home := environment(t)
	keyFile := filepath.Join(t.TempDir(), "admin.key")
	path, _ := announce(t, lookup, keyFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s local.Server
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	s.Network = "net:[1]"
	if text, err = json.Marshal(s); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(home, "127.0.0.1:1-1.server")
	if err := os.WriteFile(elsewhere, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if servers := found(lookup, keyFile); len(servers) != 0 {
		t.Errorf("it found %+v", servers)
	}
	withdraw, err := local.Announce(lookup, local.Server{Addr: at(t, "127.0.0.1:2"), KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	defer withdraw()
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("the announcement of a server that lives is gone: %v", err)
	}
}

func TestHome(t *testing.T) {
	own, root := t.TempDir(), os.Geteuid() == 0
	if root { // nobody else can give a directory away
		gone := filepath.Join(own, "gone")
		if err := os.Mkdir(gone, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(gone, 12345, 12345); err != nil {
			t.Fatal(err)
		}
	}
	fallback := map[bool]string{true: "/run/muster", false: "/h/.local/state/muster/run"}[root]
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"one that is named": {map[string]string{"MUSTER_RUN_DIR": "/run/x", "XDG_RUNTIME_DIR": own}, "/run/x"},
		"a session":         {map[string]string{"XDG_RUNTIME_DIR": own, "RUNTIME_DIRECTORY": "/run/x", "HOME": "/h"}, own + "/muster"},
		"another user's":    {map[string]string{"XDG_RUNTIME_DIR": own + "/gone", "HOME": "/h"}, fallback},
		"a unit":            {map[string]string{"RUNTIME_DIRECTORY": "/run/x", "HOME": "/h"}, "/run/x"},
		"a unit with two":   {map[string]string{"RUNTIME_DIRECTORY": "/run/x:/run/y"}, "/run/x"},
		"nothing, or empty": {map[string]string{"XDG_RUNTIME_DIR": ""}, map[bool]string{true: "/run/muster"}[root]},
	} {
		t.Run(name, func(t *testing.T) {
			got := local.Home(func(name string) (string, bool) { value, ok := c.env[name]; return value, ok })
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Where one directory is named, servers are looked for in no other.
func TestServers_OnlyInTheDirectoryThatIsNamed(t *testing.T) {
	lookup, _ := environment(t)
	keyFile := filepath.Join(t.TempDir(), "admin.key")
	_, withdraw := announce(t, lookup, keyFile)
	defer withdraw()
	dir := t.TempDir()
	named := func(name string) (string, bool) {
		if name == "MUSTER_RUN_DIR" {
			return dir, true
		}
		return lookup(name)
	}
	if all := local.Servers(named); len(all) != 0 || len(found(lookup, keyFile)) != 1 {
		t.Errorf("found %+v", all)
	}
	_, withdrawNamed := announce(t, named, keyFile)
	defer withdrawNamed()
	if all := local.Servers(named); len(all) != 1 {
		t.Errorf("found %+v, want its own", all)
	}
}

func TestServer_At(t *testing.T) {
	for name, c := range map[string]struct {
		listens, host string
		port          uint16
		want          string // empty: it is another one's
	}{
		"its address":                {"127.0.0.1:9000", "127.0.0.1", 9000, "127.0.0.1:9000"},
		"another port":               {"127.0.0.1:9000", "127.0.0.1", 9001, ""},
		"another address":            {"127.0.0.1:9000", "127.0.0.2", 9000, ""},
		"localhost":                  {"127.0.0.1:9000", "LocalHost", 9000, "127.0.0.1:9000"},
		"localhost of IPv6":          {"[::1]:9000", "localhost", 9000, "[::1]:9000"},
		"localhost, listens outside": {"10.0.0.1:9000", "localhost", 9000, ""},
		"a name":                     {"127.0.0.1:9000", "ops.example", 9000, ""},
		"all, loopback":              {"0.0.0.0:9000", "127.0.0.1", 9000, "127.0.0.1:9000"},
		"all, another loopback":      {"0.0.0.0:9000", "127.1.2.3", 9000, "127.1.2.3:9000"},
		"all of IPv4, IPv6":          {"0.0.0.0:9000", "::1", 9000, ""},
		"all of both, IPv6":          {"[::]:9000", "::1", 9000, "[::1]:9000"},
		"all of both, IPv4":          {"[::]:9000", "127.0.0.1", 9000, "127.0.0.1:9000"},
		"all, localhost":             {"[::]:9000", "localhost", 9000, "127.0.0.1:9000"},
		"all, somewhere else":        {"0.0.0.0:9000", "10.0.0.2", 9000, ""},
		"outside, its address":       {"10.0.0.1:9000", "10.0.0.1", 9000, "10.0.0.1:9000"},
		"IPv4 written as IPv6":       {"127.0.0.1:9000", "::ffff:127.0.0.1", 9000, "127.0.0.1:9000"},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := local.Server{Addr: at(t, c.listens)}.At(c.host, c.port)
			if want, none := c.want, c.want == ""; ok == none || ok && got.String() != want {
				t.Errorf("it is at %s, %t", got, ok)
			}
		})
	}
}
