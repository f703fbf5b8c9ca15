package nspawn_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/check"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// probeOf looks at what runs in a machine from within it.
func probeOf(d *nspawn.Driver, machine string) check.Probe {
	return check.Probe{
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return d.DialMachine(ctx, machine, network, address)
		},
		Exec: func(ctx context.Context, command []string, output io.Writer) (driver.Exit, error) {
			return d.Exec(ctx, driver.ExecSpec{Machine: machine, Command: command}, driver.Streams{Stdout: output, Stderr: output})
		},
	}
}

// TestHealth_IsLookedForInside runs checks of a server that listens on the machine's own loopback only.
func TestHealth_IsLookedForInside(t *testing.T) {
	h := newHost(t)
	d := h.open()
	m := run(t, d, h.spec("a", "echo all is well >/index.html; exec httpd -f -p 127.0.0.1:8080 -h /")).Spec.Machine
	probe := probeOf(d, m)
	eventually := func(c muster.Check) (o check.Outcome) {
		for deadline := time.Now().Add(grace); o.Status != muster.CheckOK && time.Now().Before(deadline); {
			o = probe.Run(t.Context(), c)
		}
		return o
	}
	sh := func(format string, args ...any) muster.Check {
		return muster.Check{Kind: muster.ExecCheck, Command: []string{"sh", "-c", fmt.Sprintf(format, args...)}}
	}
	if o := eventually(muster.Check{Kind: muster.HTTPCheck, Port: 8080, Path: "/index.html", Body: "is well"}); o.Status != muster.CheckOK {
		t.Errorf("HTTP: %+v", o)
	}
	for name, c := range map[string]struct {
		check  muster.Check
		status muster.CheckStatus
		output string
	}{
		"TCP":            {muster.Check{Kind: muster.TCPCheck, Port: 8080}, muster.CheckOK, "connected"},
		"nobody listens": {muster.Check{Kind: muster.TCPCheck, Port: 8081}, muster.CheckCritical, "refused"},
		"fine":           {sh("echo fine; id -u"), muster.CheckOK, "fine\n65534\n"},
		"slow":           {sh("echo slow >&2; exit 1"), muster.CheckWarning, "slow\n"},
		"no command":     {muster.Check{Kind: muster.ExecCheck, Command: []string{"check_nosuch"}}, muster.CheckUnknown, "could not start: there is no program"},
		"hanging":        {withTimeout(sh("sleep 615 & setsid sleep 616 & echo began; sleep 617"), 300*time.Millisecond), muster.CheckCritical, "it took longer than 300ms\ncontext deadline"},
	} {
		if o := probe.Run(t.Context(), c.check); o.Status != c.status || !strings.Contains(o.Output, c.output) {
			t.Errorf("%s: %s with %q, want %s with %q", name, o.Status, o.Output, c.status, c.output)
		}
	}
	if left := append(sleepers("615", "616", "617"), commandsLeft(h)...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := d.Stop(t.Context(), m, 0); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []muster.CheckKind{muster.TCPCheck, muster.HTTPCheck, muster.ExecCheck} {
		if o := probe.Run(t.Context(), muster.Check{Kind: kind, Port: 8080, Command: []string{"true"}}); o.Status != muster.CheckUnknown || !strings.Contains(o.Output, "does not run") {
			t.Errorf("%s in what does not run: %+v", kind, o)
		}
	}
	if _, err := d.DialMachine(t.Context(), "absent", "tcp", "127.0.0.1:1"); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("in what is not there: %v", err)
	}
	if _, err := d.DialMachine(t.Context(), m, "tcp", "localhost:1"); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("a name: %v", err)
	}
	remove(t, d)
}

func withTimeout(c muster.Check, d time.Duration) muster.Check {
	c.Timeout = d
	return c
}
