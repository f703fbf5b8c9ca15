package registration_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// ccm is the program of choria-io/ccm, connected to a server of ours.
type ccm struct {
	bin string
	env []string
}

func (c *ccm) command(args ...string) *exec.Cmd {
	cmd := exec.Command(c.bin, append([]string{"registration"}, args...)...)
	cmd.Env = append(os.Environ(), c.env...)
	return cmd
}

func (c *ccm) run(t testing.TB, args ...string) string {
	t.Helper()
	cmd := c.command(args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ccm %q: %v\n%s%.2000s", args, err, out, log.String())
	}
	return string(out)
}

// query returns what ccm finds, by address.
func (c *ccm) query(t testing.TB) map[string]string {
	t.Helper()
	var found []json.RawMessage
	if err := json.Unmarshal([]byte(c.run(t, "query", "*", "*", "*", "*", "--json")), &found); err != nil {
		t.Fatal(err)
	}
	entries := map[string]string{}
	for _, raw := range found {
		var key struct{ Service, Address string }
		if err := json.Unmarshal(raw, &key); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for line := range strings.Lines(string(raw)) {
			text.WriteString(strings.TrimSpace(line))
		}
		entries[key.Service+" "+key.Address] = text.String()
	}
	return entries
}

// watch collects the lines of ccm's watch.
func (c *ccm) watch(t testing.TB) func() string {
	t.Helper()
	cmd := c.command("watch")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = cmd.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var text strings.Builder
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			mu.Lock()
			text.WriteString(lines.Text() + "\n")
			mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

// What muster and ccm write, the other reads, watches and removes.
func TestCCM_BothWays(t *testing.T) {
	bin := os.Getenv("MUSTER_CCM_BIN")
	if bin == "" {
		t.Log("left out: MUSTER_CCM_BIN does not name a ccm program")
		return
	}
	f, r, _ := opened(t, registration.FeedOptions{
		Embedded: registration.EmbeddedOptions{Listen: "127.0.0.1:0", Token: "token"},
		Stream:   registration.StreamOptions{CheckEvery: time.Second}, Mirror: registration.MirrorOptions{CheckEvery: time.Second},
	})
	eventually(t, "the feed is up", func() bool { return f.State().Up })
	config := t.TempDir()
	if err := os.MkdirAll(filepath.Join(config, "nats", "context"), 0o700); err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(map[string]string{"url": "nats://" + f.Addr(), "token": "token"})
	if err := os.WriteFile(filepath.Join(config, "nats", "context", "muster.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	other := &ccm{bin, []string{"XDG_CONFIG_HOME=" + config, "HOME=" + config, "NATS_CONTEXT=muster"}}
	seen := other.watch(t)
	_, conn, _ := f.Parts()
	eventually(t, "ccm watches", func() bool {
		found, err := conn.JetStream().Stream(t.Context(), "REGISTRATION")
		return err == nil && found.CachedInfo().State.Consumers == 2
	})

	all := desired{}
	payloads := map[string]string{}
	for _, v := range vectors()[1:] { // the annotations stand for the first, too
		all[registration.Subject(&v.entry)] = &v.entry
		payloads[v.entry.Service+" "+v.entry.Address] = v.payload
	}
	f.Replace(all)
	wait(t, f.Keeper)
	found := other.query(t)
	for key, payload := range payloads {
		var ours, theirs any
		if json.Unmarshal([]byte(payload), &ours) != nil || json.Unmarshal([]byte(found[key]), &theirs) != nil || !sameJSON(ours, theirs) {
			t.Errorf("%s: ccm reads %s, want %s", key, found[key], payload)
		}
	}
	if len(found) != len(payloads) {
		t.Errorf("ccm finds %d, want %d", len(found), len(payloads))
	}
	f.Replace(nil)
	wait(t, f.Keeper)
	if found := other.query(t); len(found) != 0 {
		t.Errorf("ccm still finds %v", found)
	}
	eventually(t, "ccm's watch tells of all and of their removal", func() bool { // a line each
		return strings.Count(seen(), "Updated entry") >= len(payloads) && strings.Count(seen(), "Removed entry") >= len(payloads)
	})

	theirs := &muster.Registration{Cluster: "production", Protocol: "http", Service: "web", Address: "10.9.0.1", Port: ptr(8080), Priority: 7, TTL: ptr(36 * time.Hour)}
	where := []string{"--cluster", "production", "--protocol", "http", "--service", "web", "--address", "10.9.0.1", "--port", "8080"}
	other.run(t, append([]string{"create", "--priority", "7", "--ttl", "1d12h"}, where...)...)
	r.until(t, "we see ccm's", has(theirs))
	want, _ := registration.Encode(theirs)
	if m := r.at(registration.Subject(theirs)); string(m.Data) != string(want) || m.Origin != "" || m.TTL != "36h0m0s" {
		t.Errorf("got %s %q %q, want %s", m.Data, m.Origin, m.TTL, want)
	}
	other.run(t, append([]string{"rm", "--force"}, where...)...)
	r.until(t, "we see that ccm removed it", has())

	other.run(t, "init")
	eventually(t, "what ccm's init switches off is on again", func() bool {
		found, err := conn.JetStream().Stream(t.Context(), "REGISTRATION")
		return err == nil && found.CachedInfo().Config.AllowDirect
	})
}

func sameJSON(a, b any) bool {
	one, _ := json.Marshal(a)
	two, _ := json.Marshal(b)
	return string(one) == string(two)
}
