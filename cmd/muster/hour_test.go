package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// quietHour is a registry, and a node with a service whose check says something else each time.
type quietHour struct {
	*registry.Registry
	t        *testing.T
	host     *drivertest.Host
	services *deploy.Manager
	news     chan struct{}
	instance *muster.Instance
	node     *muster.Node
	runs     atomic.Int64 // of the check
	sequence int64
}

// idle is an agent that looks by itself.
type idle struct{}

func (idle) Nudge(context.Context, registry.Nudge) error { return nil }

func (idle) Identify(context.Context, *muster.Node) (muster.NodeUID, int64, error) {
	return "", 0, muster.Errorf(muster.Unavailable, "nobody is there")
}

func newQuietHour(t *testing.T, ctx context.Context) *quietHour {
	q := &quietHour{t: t, host: drivertest.NewHost(), news: make(chan struct{}, 1)}
	st, err := store.Open(ctx, store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	deps := registry.Deps{Store: st, History: st, Hub: watch.New(st, watch.Options{}), Agents: idle{}, Logger: slog.New(slog.DiscardHandler)}
	if q.Registry, err = registry.Open(ctx, deps, registry.Options{}); err != nil {
		t.Fatal(err)
	}
	q.Listening()
	q.host.Program("httpd", func(p *drivertest.Process) int { <-p.Killed; return 0 })
	q.host.Program("plugin", func(p *drivertest.Process) int { p.Print("%d users", q.runs.Add(1)); return 0 })
	q.services = deploy.New(deploy.Options{Driver: drivertest.NewFake(q.host), Changed: func() {
		select {
		case q.news <- struct{}{}:
		default:
		}
	}})
	return q
}

// launch has an instance run on the node.
func (q *quietHour) launch(ctx context.Context) {
	q.t.Helper()
	joined, err := q.RegisterNode(ctx, muster.RegisterNodeInput{
		ID: "n1", Hostname: "n1", Addr: "127.0.0.1", Port: 8080, Role: muster.Compute, CPUCount: 4, MemoryMB: 4096, Incarnation: 1, Images: []string{"minimal"},
	})
	if err != nil {
		q.t.Fatal(err)
	}
	q.node = joined.Node
	if q.instance, _, err = q.LaunchInstance(ctx, muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal"}); err != nil {
		q.t.Fatal(err)
	}
	_, err = drivertest.NewFake(q.host).Launch(ctx, driver.Spec{
		Machine: q.instance.Machine, Disk: "c1-i-1", Instance: string(q.instance.ID), Generation: 1, Hostname: "a", Image: "minimal", CPUPercent: 25, MemoryMB: 128,
	})
	if err != nil {
		q.t.Fatal(err)
	}
	q.report(ctx)
}

// report does what an agent does: it beats, fetches what is desired, and tells how it is.
func (q *quietHour) report(ctx context.Context) {
	q.t.Helper()
	if _, err := q.Heartbeat(ctx, muster.HeartbeatInput{UID: q.node.UID, Incarnation: 1}); err != nil {
		q.t.Fatal(err)
	}
	assigned, err := q.Assignments(ctx, q.node.UID, 1)
	if err != nil {
		q.t.Fatal(err)
	}
	for _, a := range assigned.Instances {
		q.services.Want([]deploy.Machine{{Name: a.Machine, Running: true, Services: a.Services}})
	}
	q.sequence++
	_, _, err = q.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: q.node.UID, Incarnation: 1, Sequence: q.sequence, Epoch: assigned.Epoch, AppliedRevision: assigned.DesiredRevision,
		Instances: []muster.InstanceReportInput{{
			Machine: q.instance.Machine, Epoch: assigned.Epoch, ID: q.instance.ID, Generation: q.instance.Generation, Status: muster.Running,
			Services: q.services.Reports(q.instance.Machine),
		}},
	})
	if err != nil {
		q.t.Fatal(err)
	}
}

// pass reports each 10 s, and whenever there is news.
func (q *quietHour) pass(ctx context.Context, span time.Duration) {
	q.t.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); {
		select {
		case <-q.news:
		case <-time.After(10 * time.Second):
		}
		q.report(ctx)
	}
}

// TestServices_AnHourOfOutput has a check run once a second for an hour, and say something else each time.
func TestServices_AnHourOfOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := newQuietHour(t, ctx)
		done := make(chan error, 2)
		go func() { done <- q.Run(ctx) }()
		go func() { done <- q.services.Run(ctx) }()
		defer func() {
			cancel()
			q.host.Close()
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}()
		q.launch(ctx)
		s, _, err := q.DeployService(ctx, muster.DeployServiceInput{
			InstanceID: &q.instance.ID, Name: "web", Command: []string{"httpd"},
			Checks: []muster.Check{{Name: "users", Kind: muster.ExecCheck, Command: []string{"plugin"}, Interval: time.Second}},
		})
		if err != nil {
			t.Fatal(err)
		}
		q.pass(ctx, time.Minute)
		if got := q.Service(s.ID); got.Status != muster.ServiceRunning || q.ServiceHealth(got) != muster.HealthOK {
			t.Fatalf("it is %+v", got)
		}
		before, reports, runs := q.ServerInfo().Revision, q.sequence, q.runs.Load()
		q.pass(ctx, time.Hour)
		synctest.Wait()
		if now := q.ServerInfo().Revision; now != before {
			t.Errorf("an hour made %d changes, want none", now-before)
		}
		if n := q.runs.Load() - runs; n < 3590 || q.sequence-reports < 360 {
			t.Errorf("the check ran %d times, and there were %d reports: that proves nothing", n, q.sequence-reports)
		}
		last := q.CheckResults(q.Service(s.ID))
		var users int64
		if _, err := fmt.Sscanf(last[0].Output, "%d users", &users); err != nil || users < q.runs.Load()-15 {
			t.Errorf("after %d runs the check is said to have found %+v", q.runs.Load(), last)
		}
	})
}
