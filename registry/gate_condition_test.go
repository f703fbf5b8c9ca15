package registry_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
)

// Whatever an entry of a service needs, it is gone when that is missing, and all else is well, and there again with it.
func TestGate_NeedsEachCondition(t *testing.T) {
	ok := []muster.CheckResult{{Name: "one", Status: muster.CheckOK}, {Name: "two", Status: muster.CheckOK}}
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, h *host, s *muster.Service, well muster.ServiceReportInput)
	}{
		{"its health", func(t *testing.T, h *host, _ *muster.Service, well muster.ServiceReportInput) {
			well.Health = muster.HealthBad
			h.tell(t, muster.Running, well)
		}},
		{"a check that has run", func(t *testing.T, h *host, _ *muster.Service, well muster.ServiceReportInput) {
			well.Checks = ok[:1]
			h.tell(t, muster.Running, well)
		}},
		{"a check that is OK", func(t *testing.T, h *host, _ *muster.Service, well muster.ServiceReportInput) {
			well.Checks = []muster.CheckResult{ok[0], {Name: "two", Status: muster.CheckWarning}}
			h.tell(t, muster.Running, well)
		}},
		{"a process", func(t *testing.T, h *host, _ *muster.Service, well muster.ServiceReportInput) {
			well.Status, well.PID = muster.ServiceRestarting, nil
			h.tell(t, muster.Running, well)
		}},
		{"an instance that runs", func(t *testing.T, h *host, _ *muster.Service, well muster.ServiceReportInput) {
			h.tell(t, muster.Failed, well)
		}},
		{"somebody who wants it, while it drains", func(t *testing.T, h *host, s *muster.Service, well muster.ServiceReportInput) {
			if _, _, err := h.StopService(ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			h.tell(t, muster.Running, well)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &feed{}
				h := newHost(t, setup{feed: f})
				s := registered(t, h, func(in *muster.DeployServiceInput) {
					in.Checks = []muster.Check{{Name: "one", Kind: muster.TCPCheck}, {Name: "two", Kind: muster.TCPCheck}}
				})
				well := said(s, muster.ServiceRunning, muster.HealthOK)
				well.Checks = ok
				h.tell(t, muster.Running, well)
				wantEntries(t, h.world, "web", 1)
				c.spoil(t, h, s, well)
				wantEntries(t, h.world, "web", 0)
				if kept := f.now(); len(kept) != 0 {
					t.Errorf("the feed still keeps %+v", kept)
				}
				if now := h.Service(s.ID); now.Desired == muster.WantRunning && h.Instance(h.instance.ID).Status == muster.Running {
					h.tell(t, muster.Running, well)
					wantEntries(t, h.world, "web", 1)
				}
			})
		})
	}
}

// A server that starts believes what it reads of a service, and publishes nothing new of it before its node was heard of.
func TestGate_OpensOnceANodeIsHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := setup{dir: t.TempDir(), feed: &feed{}}
		h := newHost(t, again)
		s := registered(t, h, func(in *muster.DeployServiceInput) { in.StableFor = 5 * time.Second })
		h.tell(t, muster.Running, said(s, muster.ServiceRunning, muster.HealthOK))
		wantEntries(t, h.world, "web", 0)
		h.stop()
		w := open(t, again)
		time.Sleep(10 * time.Second)
		wantEntries(t, w, "web", 0)
		if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: h.node.UID, Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
		wantEntries(t, w, "web", 1)
	})
}
