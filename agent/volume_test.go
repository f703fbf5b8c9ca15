package agent_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

// launchWith launches an instance that has more than the usual.
func (c *cloud) launchWith(change func(*muster.Assignment)) muster.InstanceID {
	id := c.launch()
	c.with(func() { change(&c.instances[id].Assignment) })
	return id
}

// told is what the last beat told of what is used.
func (c *cloud) told() (u *muster.UsageInput) {
	c.with(func() { u = c.beat.Usage })
	return u
}

func withVolume(a *muster.Assignment) {
	a.Volumes = []muster.VolumeMount{{Name: "data", Path: "/data"}}
}

// volumes are those on the host.
func (w *world) volumes() []string {
	w.t.Helper()
	names, err := drivertest.NewFake(w.host).Volumes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

func TestAgent_ReportsAndRemovesVolumes(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.AllowHostPath("/srv/shared")
		w.start()
		if in := w.cloud.registered[0]; len(in.Volumes) != 0 || in.Volumes == nil || !slices.Equal(in.HostPaths, []string{"/srv/shared"}) {
			t.Errorf("registered with the volumes %v and the host paths %v", in.Volumes, in.HostPaths)
		}
		id := w.cloud.launchWith(withVolume)
		pass(10 * time.Second)
		w.want(id, muster.Running)
		if seen := w.cloud.seen(id); len(seen.Volumes) != 1 || seen.Volumes[0].Name != "data" {
			t.Errorf("reported with %+v", seen.Volumes)
		}
		if r, _ := w.cloud.report(); !slices.Equal(r.Volumes, []string{"data"}) {
			t.Errorf("reported are the volumes %v", r.Volumes)
		}
		w.cloud.with(func() { w.cloud.doomed = []string{"data"} })
		w.cloud.restart(id) // what has it fetch
		pass(20 * time.Second)
		if got := w.volumes(); !slices.Equal(got, []string{"data"}) {
			t.Errorf("while a machine uses it there is %v", got)
		}
		w.cloud.terminate(id)
		pass(30 * time.Second) // told, removed, and tried again
		if got := w.volumes(); len(got) > 0 {
			t.Errorf("after the removal there is %v", got)
		}
		if r, _ := w.cloud.report(); len(r.Volumes) > 0 || r.Volumes == nil {
			t.Errorf("reported are the volumes %v", r.Volumes)
		}
	})
}

// unable is a driver without any optional ability.
type unable struct{ driver.Driver }

func TestAgent_LeavesNothingOutThatItCannotDo(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.wrap = func(d driver.Driver) driver.Driver { return unable{d} }
		w.start()
		limited := func(a *muster.Assignment) { a.DiskLimitMB = 64 }
		for words, change := range map[string]func(*muster.Assignment){"has no volumes": withVolume, "cannot limit disks": limited} {
			id := w.cloud.launchWith(change)
			pass(10 * time.Second)
			w.want(id, muster.Failed)
			if reason := w.cloud.seen(id).Reason; !strings.Contains(reason, words) {
				t.Errorf("failed because %q, want %q", reason, words)
			}
		}
	})
}

func TestAgent_AHostPathThatIsNotAllowedIsAReason(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launchWith(func(a *muster.Assignment) { a.Volumes = []muster.VolumeMount{{HostPath: "/etc", Path: "/etc"}} })
		pass(10 * time.Second)
		w.want(id, muster.Failed)
		if reason := w.cloud.seen(id).Reason; !strings.Contains(reason, "/etc") {
			t.Errorf("failed because %q", reason)
		}
	})
}

// disks is a driver that measures and takes its time for it.
type disks struct {
	*drivertest.Fake
	takes time.Duration
	times *[]time.Time
}

func (d disks) DiskLimits(context.Context) error { return nil }

func (d disks) DiskUsage(ctx context.Context, _ string) (int64, error) {
	*d.times = append(*d.times, time.Now())
	if len(*d.times) == 2 {
		return 0, errors.New("a defect")
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d.takes):
		return 300<<20 + int64(len(*d.times)), nil
	}
}

func TestAgent_MeasuresDisksNowAndThen(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		most  int // measurements within an hour
	}{
		"a small disk": {time.Millisecond, 31},
		"a large disk": {time.Minute, 4},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				var times []time.Time
				w.wrap = func(driver.Driver) driver.Driver { return disks{drivertest.NewFake(w.host), c.takes, &times} }
				w.start()
				if !w.cloud.registered[0].DiskLimits {
					t.Error("it did not say that it can limit disks")
				}
				id := w.cloud.launch()
				pass(10 * time.Second)
				w.want(id, muster.Running)
				pass(2 * time.Minute)
				u := w.cloud.told()
				if u == nil || len(u.Machines) != 1 || u.Machines[0].DiskMB == nil || *u.Machines[0].DiskMB != 301 || u.Machines[0].DiskAt == nil {
					t.Fatalf("told %+v", u)
				}
				pass(time.Hour)
				if n := len(times); n < 2 || n > c.most {
					t.Errorf("measured %d times, want 2 to %d", n, c.most)
				}
				if u := w.cloud.told(); len(u.Machines) != 1 || u.Machines[0].DiskMB == nil {
					t.Errorf("after a measurement that failed it told %+v", u)
				}
			})
		})
	}
}
