package hollow_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/hollow"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func spec(disk string, generation int64) driver.Spec {
	return driver.Spec{
		Machine: fmt.Sprintf("%s-%d", disk, generation), Disk: disk, Generation: generation,
		Hostname: "h", Image: "minimal", CPUPercent: 25, MemoryMB: 128,
	}
}

func launch(t *testing.T, d *hollow.Driver, s driver.Spec) driver.Status {
	t.Helper()
	got, err := d.Launch(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func names(t *testing.T, d *hollow.Driver) (all []string) {
	t.Helper()
	machines, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		all = append(all, fmt.Sprint(m.Spec.Machine, " ", m.State))
	}
	return all
}

func TestDriver_LaunchStopRemove(t *testing.T) {
	d := hollow.New(hollow.Options{})
	first := launch(t, d, spec("c-i-1", 1))
	second := launch(t, d, spec("c-i-2", 1))
	if first.State != driver.Running || first.PID == second.PID {
		t.Errorf("launched %+v and %+v", first, second)
	}
	if _, err := d.Launch(t.Context(), spec("c-i-1", 2)); !errors.Is(err, driver.ErrExists) {
		t.Errorf("a second generation beside the first: %v", err)
	}
	stopped, err := d.Stop(t.Context(), "c-i-1-1", time.Minute)
	if err != nil || stopped.State != driver.Exited || stopped.Reason != "stopped" || stopped.PID != 0 {
		t.Errorf("stopped %+v, %v", stopped, err)
	}
	launch(t, d, spec("c-i-1", 2)) // takes the disk over
	if got := fmt.Sprint(names(t, d)); got != "[c-i-1-2 RUNNING c-i-2-1 RUNNING]" {
		t.Errorf("there are %s", got)
	}
	for range 2 {
		if err := d.Remove(t.Context(), "c-i-1-2"); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Stop(t.Context(), "c-i-1-2", 0); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("stopped what was removed: %v", err)
	}
	if got := fmt.Sprint(names(t, d)); got != "[c-i-2-1 RUNNING]" {
		t.Errorf("there are %s", got)
	}
}

func TestDriver_Refuses(t *testing.T) {
	d := hollow.New(hollow.Options{Images: []string{"debian"}})
	if _, err := d.Launch(t.Context(), spec("c-i-1", 1)); !errors.Is(err, driver.ErrNoImage) {
		t.Errorf("an image that it lacks: %v", err)
	}
	if _, err := d.Launch(t.Context(), driver.Spec{Machine: "NO"}); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("a bad specification: %v", err)
	}
	if images, err := d.Images(t.Context()); err != nil || len(images) != 1 || images[0] != "debian" {
		t.Errorf("images %v, %v", images, err)
	}
}

func TestDriver_EndsByItselfAndTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := hollow.New(hollow.Options{Lifetime: time.Hour})
		var mu sync.Mutex
		told := map[string]int{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for name := range d.Watch(ctx) {
				mu.Lock()
				told[name]++
				mu.Unlock()
			}
		}()
		const machines = 100
		for k := range machines {
			launch(t, d, spec(fmt.Sprint("c-i-", k), 1))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		mu.Lock()
		n := len(told)
		mu.Unlock()
		if n < machines/3 || n > machines*9/10 {
			t.Errorf("%d of %d have ended after the average lifetime", n, machines)
		}
		time.Sleep(100 * time.Hour)
		cancel()
		<-done
		all, err := d.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			if m.State != driver.Exited || m.ExitCode == nil || *m.ExitCode != 1 || m.Reason == "" || m.PID != 0 || told[m.Spec.Machine] != 1 {
				t.Errorf("%+v, told %d times", m, told[m.Spec.Machine])
			}
		}
	})
}
