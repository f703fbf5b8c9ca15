package agent_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

func TestAgent_ReportsAreTriedUntilTaken(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		other := w.cloud.launch()
		pass(15 * time.Second)
		_, taken := w.cloud.report()
		w.cloud.with(func() { w.cloud.fail = unavailable("ReportInstances") })
		w.host.Exit("k3f9-i-1-1", 1, "")
		pass(time.Minute)
		w.host.Exit("k3f9-i-2-1", 0, "")
		pass(time.Minute)
		tries := w.cloud.times("ReportInstances")
		w.cloud.with(func() { w.cloud.fail = nil })
		pass(10 * time.Second)
		w.want(id, muster.Failed)
		w.want(other, muster.Stopped)
		newest, n := w.cloud.report()
		if n != taken+1 {
			t.Errorf("%d reports were taken after the registry was back, want the newest one only", n-taken)
		}
		if len(tries) < 12 || len(tries) > 60 {
			t.Errorf("%d tries in two minutes", len(tries))
		}
		if newest.Sequence <= int64(taken) {
			t.Errorf("its sequence is %d", newest.Sequence)
		}
	})
}

func TestAgent_ReportsAgainWhenAnAnswerGotLost(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		pass(15 * time.Second)
		w.cloud.with(func() { w.cloud.lost = true })
		w.host.SetImages("minimal", "new")
		pass(10 * time.Second)
		w.host.SetImages("minimal") // as the registry was told before
		w.cloud.with(func() { w.cloud.lost = false })
		pass(10 * time.Second)
		if newest, _ := w.cloud.report(); len(newest.Images) != 1 {
			t.Errorf("the registry believes that there are %v", newest.Images)
		}
	})
}

func TestAgent_ReportsAgainWhenTheRegistryHasAnotherReport(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		pass(15 * time.Second)
		w.host.SetImages("minimal", "new")
		pass(15 * time.Second)
		_, before := w.cloud.report()
		w.cloud.with(func() { w.cloud.sequence = 0 }) // it was restarted, or an old registration came late
		pass(15 * time.Second)
		newest, now := w.cloud.report()
		if now != before+1 || len(newest.Images) != 2 {
			t.Errorf("%d reports came, the newest %+v; want one with all there is", now-before, newest)
		}
		pass(time.Minute)
		if _, later := w.cloud.report(); later != now {
			t.Errorf("%d more reports while nothing changed", later-now)
		}
	})
}

func TestAgent_FitsItsReportsIntoWhatARegistryTakes(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.Program("shout", func(p *drivertest.Process) int {
			p.Print("%s", strings.Repeat("\x01", 4000)+"the end") // six bytes each as JSON
			return 1
		})
		a := w.start()
		var id muster.InstanceID
		for range 250 {
			id = w.cloud.launch("shout")
		}
		a.nudgeNow(w, id)
		pass(time.Second)
		newest, _ := w.cloud.report()
		text, err := json.Marshal(newest)
		if err != nil || len(text) > 1<<20 || len(newest.Instances) != 250 {
			t.Errorf("a report of %d instances has %d bytes: %v", len(newest.Instances), len(text), err)
		}
		for _, r := range newest.Instances {
			if !strings.HasSuffix(r.Output, "the end\n") || len(r.Output) < 200 {
				t.Fatalf("%s is reported with the output %q", r.Machine, r.Output)
			}
		}
	})
}
