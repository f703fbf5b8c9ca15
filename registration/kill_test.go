package registration_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/registration"
)

// process is a server that can be killed.
type process struct {
	cmd  *exec.Cmd
	addr string
}

func spawn(t testing.TB, dir, listen string) *process {
	t.Helper()
	return spawnWith(t, childEnv+"="+dir+"|"+listen)
}

// spawnWith starts a server as a process of its own, which env says, and waits until it says where it listens.
func spawnWith(t testing.TB, env string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // it ends when we do
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd}
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "failed") {
		t.Fatal(line, err)
	}
	p.addr = strings.TrimSpace(line)
	return p
}

// kill ends it as kill -9 does.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// A server that is killed in the middle of whatever it does: afterwards the feed is what is desired,
// by subject, bytes, time to live and origin, and the mirror has seen the same.
func TestFeed_SurvivesKills(t *testing.T) {
	dir := t.TempDir()
	server := spawn(t, dir, "127.0.0.1:0")
	f, r, _ := opened(t, registration.FeedOptions{Connect: registration.ConnectOptions{URL: "nats://token@" + server.addr}})
	all := desired{}
	for round := range 5 {
		for i := range 200 {
			e := entry(fmt.Sprintf("s%d", i), "10.0.0.1", 80, time.Hour)
			if (i+round)%3 == 0 {
				delete(all, registration.Subject(e))
			} else {
				e.Priority = 1 + (i*round)%200
				all[registration.Subject(e)] = e
			}
		}
		f.Replace(all)
		done := f.Counts()
		eventually(t, "some of it is done", func() bool { c := f.Counts(); return c.Publishes+c.Markers > done.Publishes+done.Markers })
		server.kill()
		server = spawn(t, dir, server.addr)
	}
	wait(t, f.Keeper)
	eventually(t, "the feed is up", func() bool { return f.State().Up })
	findings, err := f.Verify(t.Context(), false)
	if err != nil || len(findings) != 0 {
		t.Errorf("got %v, %v", findings, err)
	}
	r.until(t, "the mirror has the same", func(r *recorder) bool {
		for subject, e := range all {
			if m, ok := r.there[subject]; !ok || m.Entry.Priority != e.Priority {
				return false
			}
		}
		return len(r.there) == len(all)
	})
}
