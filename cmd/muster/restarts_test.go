package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registration"
)

// puppet is a node with a healthy service that registers itself, whose agent is played.
type puppet struct {
	beat    muster.HeartbeatInput
	subject string // of the service's entry
}

const puppetTTL = 4 * time.Second

func newPuppet(t *testing.T, api *client.Client, k int) *puppet {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	joined, err := api.RegisterNode(ctx, crashNode(k))
	must(err)
	node := fmt.Sprint("n", k)
	i, err := api.LaunchInstance(ctx, muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal", NodeID: &node})
	must(err)
	machine := muster.InstanceReportInput{Machine: i.Machine, Epoch: joined.Server.Epoch, ID: i.ID, Generation: i.Generation, Status: muster.Running}
	sequence := int64(0)
	report := func(services ...muster.ServiceReportInput) {
		sequence++
		machine.Services = services
		_, err := api.ReportInstances(ctx, muster.ReportInstancesInput{
			UID: joined.Node.UID, Incarnation: 1, Sequence: sequence, Epoch: joined.Server.Epoch, Instances: []muster.InstanceReportInput{machine},
		})
		must(err)
	}
	report()
	e := entryAt(fmt.Sprint("192.0.2.", k))
	s, err := api.DeployService(ctx, muster.DeployServiceInput{
		InstanceID: &i.ID, Name: e.Service, Command: []string{"httpd"}, Checks: []muster.Check{{Name: "up", Kind: muster.TTLCheck}},
		RegisterWhenStable: []muster.RegistrationSpec{
			{Cluster: e.Cluster, Protocol: e.Protocol, Address: e.Address, Port: e.Port, Priority: &e.Priority, TTL: new(puppetTTL)},
		},
	})
	must(err)
	report(muster.ServiceReportInput{
		ID: s.ID, Generation: s.Generation, Status: muster.ServiceRunning, Health: muster.HealthOK,
		Checks: []muster.CheckResult{{Name: "up", Status: muster.CheckOK}},
	})
	return &puppet{muster.HeartbeatInput{UID: joined.Node.UID, Incarnation: 1}, registration.Subject(&e)}
}

// live beats until ctx ends, whether there is a server or not.
func (p *puppet) live(ctx context.Context, api *client.Client) {
	for ctx.Err() == nil {
		_, _ = api.Heartbeat(ctx, p.beat)
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// TestFeed_RestartLoop restarts the server again and again for ten times to live of the entries: those of
// services whose nodes beat are there all the time, and that of the one whose agent is gone runs out.
func TestFeed_RestartLoop(t *testing.T) {
	t.Parallel()
	n := newNATS(t)
	n.start()
	s := newServer(t, "--nats-url", n.url(), "--heartbeat-interval", "1s")
	s.start()
	api, in := s.client(), n.reader()
	const alive = 4
	var puppets []*puppet
	for k := range alive + 1 {
		puppets = append(puppets, newPuppet(t, api, k))
	}
	stream := func() jetstream.Stream {
		stream, err := in.js.Stream(t.Context(), registration.DefaultStream)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	until(t, "all are in the feed", func() bool { held, err := in.held(); return err == nil && len(held) == len(puppets) })

	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	looks := make([]int, alive)
	for k, p := range puppets[:alive] {
		wait.Go(func() { p.live(ctx, api) })
		feed := stream()
		wait.Go(func() {
			for ctx.Err() == nil {
				m, err := feed.GetLastMsgForSubject(ctx, p.subject)
				if ctx.Err() == nil && (err != nil || len(m.Data) == 0) {
					t.Errorf("the entry of n%d is not there: %v", k, err)
					return
				}
				looks[k]++
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	feed, dead, gone, restarts := stream(), puppets[alive].subject, false, 0
	for end := time.Now().Add(10 * puppetTTL); time.Now().Before(end); restarts++ {
		s.kill()
		s.start()
		time.Sleep(puppetTTL / 4) // shorter than the time to live, which is what the test is about
		m, err := feed.GetLastMsgForSubject(ctx, dead)
		now := errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && len(m.Data) == 0
		if gone && !now {
			t.Error("the entry of the dead service is there again")
		}
		gone = now
	}
	cancel()
	wait.Wait()
	if !gone || restarts < 5 {
		t.Errorf("after %d restarts the entry of the dead service is gone: %t", restarts, gone)
	}
	t.Logf("%d restarts, %v looks at the entries of the living", restarts, looks)
}
