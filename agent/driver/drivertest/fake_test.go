package drivertest_test

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func complete(spec driver.Spec) driver.Spec {
	spec.Image, spec.CPUPercent, spec.MemoryMB = "minimal", 25, 128
	return spec
}

func TestFake_Conforms(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		host := drivertest.NewHost()
		t.Cleanup(host.Close)
		host.AllowHostPath("/srv/shared")
		return drivertest.Harness{
			Open:      func(*testing.T) driver.Driver { return drivertest.NewFake(host) },
			Spec:      complete,
			Commands:  drivertest.FakeCommands(),
			Console:   host.Console,
			HostPath:  "/srv/shared",
			Forbidden: "/etc",
			Leftovers: host.Machines,
		}
	})
}

func TestFake_ScriptedEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end    func(*drivertest.Host)
		reason string
		oom    bool
		coded  bool
	}{
		"by itself":      {func(h *drivertest.Host) { h.Exit("m", 7, "") }, "exited with status 7", false, true},
		"out of memory":  {func(h *drivertest.Host) { h.Exit("m", 137, "out of memory") }, "out of memory", true, true},
		"host restarted": {(*drivertest.Host).Restart, "the host was restarted", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			host := drivertest.NewHost()
			defer host.Close()
			fake := drivertest.NewFake(host)
			spec := complete(driver.Spec{Machine: "m", Disk: "d", Hostname: "h"})
			if _, err := fake.Launch(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			c.end(host)
			all, err := fake.List(t.Context())
			if err != nil || len(all) != 1 {
				t.Fatalf("listed %+v, %v", all, err)
			}
			m := all[0]
			if m.State != driver.Exited || m.Reason != c.reason || m.OOM != c.oom || (m.ExitCode != nil) != c.coded {
				t.Errorf("ended as %+v", m)
			}
		})
	}
}

func TestFake_LaunchHook(t *testing.T) {
	host := drivertest.NewHost()
	defer host.Close()
	fake := drivertest.NewFake(host)
	spec := complete(driver.Spec{Machine: "m", Disk: "d", Hostname: "h"})
	broken := errors.New("no more paper")
	host.OnLaunch(func(ctx context.Context, spec driver.Spec) error {
		all, err := fake.List(ctx)
		if err != nil || len(all) != 1 || all[0].State != driver.Preparing {
			t.Errorf("listed during the launch: %+v, %v", all, err)
		}
		return broken
	})
	if _, err := fake.Launch(t.Context(), spec); !errors.Is(err, broken) {
		t.Errorf("launch: %v, want the hook's error", err)
	}
	if left := host.Machines(); len(left) != 0 || host.Launches("m") != 0 {
		t.Errorf("the failed launch left %v", left)
	}
}

func TestFake_Images(t *testing.T) {
	host := drivertest.NewHost("b", "a")
	defer host.Close()
	var images driver.Images = drivertest.NewFake(host)
	for _, want := range [][]string{{"a", "b"}, {"c"}} {
		got, err := images.Images(t.Context())
		if err != nil || len(got) != len(want) || got[0] != want[0] {
			t.Errorf("images %v, %v, want %v", got, err, want)
		}
		host.SetImages("c")
	}
}
