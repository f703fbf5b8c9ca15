package deploy_test

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
)

// shop is where artifacts come from. It counts how often it is asked.
type shop struct {
	*httptest.Server
	app   atomic.Pointer[string]
	asked atomic.Int64
}

func newShop(t *testing.T, app string) *shop {
	s := &shop{}
	s.app.Store(&app)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.asked.Add(1)
		_, _ = w.Write([]byte(*s.app.Load()))
	}))
	t.Cleanup(s.Close)
	return s
}

func sumOf(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// relaunch has the instance start again, as its next machine, and s wanted in it.
func (n *node) relaunch(generation int64, s *muster.ServiceAssignment) string {
	n.t.Helper()
	name := fmt.Sprintf("c1-i-1-%d", generation)
	_, err := n.driver.Launch(n.t.Context(), driver.Spec{
		Machine: name, Disk: "c1-i-1", Instance: "i-1", Generation: generation, Hostname: "a", Image: "minimal", CPUPercent: 25, MemoryMB: 128,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.manager.Want([]deploy.Machine{{Name: name, Addr: "10.213.0.2", Running: true, Services: []*muster.ServiceAssignment{s}}})
	return name
}

func (n *node) end(machine string) {
	n.t.Helper()
	if _, err := n.driver.Stop(n.t.Context(), machine, 0); err != nil {
		n.t.Fatal(err)
	}
}

func runs(generation int64) func(muster.ServiceReportInput) bool {
	return func(r muster.ServiceReportInput) bool {
		return r.Status == muster.ServiceRunning && r.Generation == generation
	}
}

// TestManager_AsksOnce starts a service again in all ways that there are, and counts how often the place that its files
// come from is asked for them.
func TestManager_AsksOnce(t *testing.T) {
	const app = "#!/bin/sh\n"
	for name, given := range map[string]string{"with a checksum": sumOf(app), "without one": ""} {
		t.Run(name, func(t *testing.T) {
			from := newShop(t, app)
			n := newNode(t)
			n.stop()
			n.fetch.Dir = filepath.Join(t.TempDir(), "artifacts")
			n.start()
			defer func() { n.stop(); n.host.Close() }()
			s := service()
			s.Command, s.DeployURL, s.SHA256 = nil, from.URL+"/app", given
			n.want(true, s)
			if r := n.until(machine, runs(1)); r.SHA256 != sumOf(app) {
				t.Errorf("it is said to be made of %q", r.SHA256)
			}
			other := "#!/bin/sh\nexit 1\n"
			from.app.Store(&other)

			n.stop() // the agent restarts, and tells again what the registry may not have heard
			n.start()
			n.want(true, s)
			if r := n.until(machine, runs(1)); r.SHA256 != sumOf(app) {
				t.Errorf("to a new agent it is made of %q", r.SHA256)
			}
			again := *s
			again.Generation = 2 // somebody restarts it
			n.want(true, &again)
			n.until(machine, runs(2))

			n.end(machine) // its instance restarts
			n.until(n.relaunch(2, &again), runs(2))

			n.end("c1-i-1-2") // its instance restarts while there is no agent
			n.stop()
			n.start()
			pinned := again
			pinned.SHA256 = sumOf(app) // as the registry has it by now
			n.until(n.relaunch(3, &pinned), runs(2))
			if asked := from.asked.Load(); asked != 1 {
				t.Errorf("asked %d times, want once", asked)
			}

			fresh := *s
			fresh.ID, fresh.SHA256 = "svc-2", ""
			n.manager.Want([]deploy.Machine{{Name: "c1-i-1-3", Running: true, Services: []*muster.ServiceAssignment{&pinned, &fresh}}})
			n.until("c1-i-1-3", func(r muster.ServiceReportInput) bool { return r.ID == "svc-2" && r.SHA256 == sumOf(other) })
			if asked := from.asked.Load(); asked != 2 {
				t.Errorf("one deployed anew had it asked %d times, want twice in all", asked)
			}
		})
	}
}

// TestManager_KeepsNoRubbish has files fetched that cannot be used, until they are replaced.
func TestManager_KeepsNoRubbish(t *testing.T) {
	from := newShop(t, "an archive, and no command")
	n := newNode(t)
	n.stop()
	n.fetch.Dir = filepath.Join(t.TempDir(), "artifacts")
	n.start()
	defer func() { n.stop(); n.host.Close() }()
	s := service()
	s.Command, s.DeployURL = nil, from.URL+"/app"
	n.want(true, s)
	r := n.until(machine, func(r muster.ServiceReportInput) bool { return r.Status == muster.ServiceFailed })
	if !strings.Contains(r.Reason, "is an archive") || r.SHA256 != "" {
		t.Errorf("it is %+v", r)
	}
	if left, err := os.ReadDir(n.fetch.Dir); err != nil || len(left) != 0 {
		t.Errorf("kept: %v, %v", left, err)
	}
	right := "#!/bin/sh\n"
	from.app.Store(&right)
	again := *s
	again.Generation = 2
	n.want(true, &again)
	if r := n.until(machine, runs(2)); r.SHA256 != sumOf(right) {
		t.Errorf("it is %+v", r)
	}
}

// TestManager_MakesRoom deploys onto a disk that is full of what nothing uses any more.
func TestManager_MakesRoom(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("muster-test", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatalf("mount a small disk: %v; run this test as root", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	from := newShop(t, "#!/bin/sh\n")
	n := newNode(t)
	n.stop()
	n.fetch.Dir = filepath.Join(dir, "artifacts")
	n.start()
	defer func() { n.stop(); n.host.Close() }()
	s := service()
	s.Command, s.DeployURL = nil, from.URL+"/app"
	deploy := func(generation int64, letter string, size int) {
		app := "#!/bin/sh\n" + strings.Repeat(letter, size)
		from.app.Store(&app)
		next := *s
		next.Generation, next.SHA256 = generation, sumOf(app)
		n.want(true, &next)
	}
	deploy(1, "a", 2<<20)
	n.until(machine, runs(1))
	deploy(2, "b", 2<<20) // the first is not wanted any more, and is in the way
	n.until(machine, runs(2))
	if left, err := os.ReadDir(n.fetch.Dir); err != nil || len(left) != 1 {
		t.Errorf("kept: %v, %v", left, err)
	}
	deploy(3, "c", 4<<20)
	r := n.until(machine, func(r muster.ServiceReportInput) bool {
		return r.Generation == 3 && strings.Contains(r.Reason, "free some space on the disk of "+n.fetch.Dir)
	})
	if r.Status != muster.ServiceDeploying {
		t.Errorf("it is %+v", r)
	}
	deploy(4, "d", 1000)
	n.until(machine, runs(4))
}
