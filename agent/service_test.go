package agent_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

// halting takes its time to list the machines, once: the slow-th time.
type halting struct {
	*drivertest.Fake
	slow  int64
	lists atomic.Int64
}

func (h *halting) List(ctx context.Context) ([]driver.Status, error) {
	if h.lists.Add(1) == h.slow {
		time.Sleep(time.Second)
	}
	return h.Fake.List(ctx)
}

// service has an instance have a service.
func (c *cloud) service(id muster.InstanceID, desired muster.DesiredStatus) {
	c.with(func() {
		c.revision++
		w := c.instances[id]
		w.since = c.revision
		w.Services = []*muster.ServiceAssignment{{
			ID: "svc-1", Generation: 1, Name: "web", Desired: desired, Command: []string{"stubborn"}, Restart: muster.RestartPolicy{}.WithDefaults(),
		}}
	})
}

// A report that says nothing of a service which is to be removed confirms that it is gone. An agent that has
// just started must not say so before it has looked.
func TestAgent_SaysThatAServiceIsGoneOnceItIs(t *testing.T) {
	for slow := range int64(8) {
		t.Run(fmt.Sprint("slow list ", slow), func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				a := w.start()
				id := w.cloud.launch()
				w.cloud.service(id, muster.WantRunning)
				pass(30 * time.Second)
				if !slices.Equal(w.host.Processes(), []string{"k3f9-i-1-1/svc-1"}) {
					t.Fatalf("there are %v", w.host.Processes())
				}
				a.stop()
				w.cloud.service(id, muster.WantTerminated)
				_, before := w.cloud.report()
				w.wrap = func(d driver.Driver) driver.Driver { return &halting{Fake: d.(*drivertest.Fake), slow: slow} }
				w.cloud.confirming = func(in muster.ReportInstancesInput) {
					if in.AppliedRevision >= w.cloud.revision && len(in.Instances) == 1 && len(in.Instances[0].Services) == 0 && len(w.host.Processes()) > 0 {
						t.Errorf("report %d confirms what it still has: %v", in.Sequence, w.host.Processes())
					}
				}
				w.start()
				pass(time.Minute)
				newest, n := w.cloud.report()
				if n == before || newest.AppliedRevision < 4 || len(newest.Instances) != 1 || len(newest.Instances[0].Services) != 0 || len(w.host.Processes()) != 0 {
					t.Errorf("in the end it says %+v and has %v", newest, w.host.Processes())
				}
			})
		})
	}
}
