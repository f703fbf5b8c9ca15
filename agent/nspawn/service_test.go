package nspawn_test

import (
	"archive/tar"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/artifact"
	"github.com/muster-cloud/muster/agent/check"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/network"
	"github.com/muster-cloud/muster/agent/proc"
)

// TestService_FromItsURLToItsPort puts together what an agent does for a service: its artifact fetched and unpacked, its
// process kept, its health looked for, its port published.
func TestService_FromItsURLToItsPort(t *testing.T) {
	h := newHost(t)
	d := h.open()
	instance := h.spec("a", "sleep 600")
	m := run(t, d, instance).Spec.Machine
	app := tarOf(
		t,
		tar.Header{Typeflag: tar.TypeReg, Name: "run", Mode: 0o755, Linkname: "#!/bin/sh\necho began >&2\nexec httpd -f -p 8080 -h /opt/muster/svc-1/pages\n"},
		tar.Header{Typeflag: tar.TypeReg, Name: "pages/index.html", Mode: 0o600, Linkname: "all is well"},
	)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(zipped(t, app)) }))
	defer web.Close()

	got, err := artifact.New(artifact.Options{}).Fetch(t.Context(), web.URL+"/app.tar.gz", "")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	installed, err := d.Install(t.Context(), driver.Artifact{Machine: m, Name: "svc-1", File: got.File, FileName: "app"})
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 100)
	keeper := proc.New(proc.Options{Driver: d, Changed: func(driver.ProcessRef) { changed <- struct{}{} }})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = keeper.Run(ctx) })
	spec := proc.Spec{
		ProcessSpec: driver.ProcessSpec{ProcessRef: driver.ProcessRef{Machine: m, Name: "svc-1"}, Command: []string{"./run"}, Dir: installed.Dir},
		Generation:  1, Restart: muster.RestartPolicy{When: muster.RestartAlways, Backoff: 10 * time.Millisecond},
	}
	keeper.Keep(spec)
	running := func(restarts int) proc.Status {
		t.Helper()
		for deadline := time.After(grace); ; {
			if now, _ := keeper.Status(spec.ProcessRef); now.State == proc.Running && now.Restarts == restarts {
				return now
			}
			select {
			case <-changed:
			case <-deadline:
				now, _ := keeper.Status(spec.ProcessRef)
				t.Fatalf("it is %+v: %s", now, logged(t, d, spec.ProcessRef))
			}
		}
	}
	publisher := network.NewPublisher(d.Network(), network.PublisherOptions{})
	defer publisher.Close()
	addr := netip.MustParsePrefix(instance.Addr).Addr()
	port, err := publisher.Publish(network.Publication{Owner: "svc-1", Protocol: muster.TCP, To: netip.AddrPortFrom(addr, 8080)})
	if err != nil {
		t.Fatal(err)
	}
	probe := probeOf(d, m)
	probe.Addr, probe.Port = addr, 8080
	healthy := check.New(check.Options{Probe: probe, Checks: []muster.Check{{Name: "web", Kind: muster.HTTPCheck, Body: "is well", Tries: 10, Pause: 100 * time.Millisecond}}})
	group.Go(func() { _ = healthy.Run(ctx) })

	first := running(0)
	for restarts := range 2 {
		if answer := fetch(t, fmt.Sprintf("http://127.0.0.1:%d/", port.Port)); answer != "all is well" {
			t.Errorf("the published port answers %q", answer)
		}
		if restarts == 0 {
			if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if second := running(1); second.PID == first.PID {
				t.Errorf("killed, it is %+v", second)
			}
		}
	}
	for deadline := time.Now().Add(grace); !healthy.Ran() && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if r := healthy.Results()[0]; r.Status != muster.CheckOK {
		t.Errorf("its check found %+v", r)
	}
	if log := logged(t, d, spec.ProcessRef); strings.Count(log, "began\n") != 2 {
		t.Errorf("its log is %q", log)
	}
	if err := publisher.Withdraw("svc-1"); err != nil {
		t.Error(err)
	}
	cancel()
	group.Wait()
	remove(t, d)
}
