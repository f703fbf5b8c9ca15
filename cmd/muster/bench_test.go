package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// BenchmarkDeploy deploys a program, which is fetched by http, into an instance that runs, and measures how long it takes
// until a watcher hears that it is RUNNING, and that its check, of 1 s, has found it HEALTHY. Medians are reported.
//
//	go test -run '^$' -bench Deploy -benchtime 20x ./cmd/muster
func BenchmarkDeploy(b *testing.B) {
	d := newDeployBench(b)
	var running, healthy []time.Duration
	for n := 0; b.Loop(); n++ {
		begin := time.Now()
		s, err := d.api.DeployService(b.Context(), muster.DeployServiceInput{
			InstanceID: &d.instance, Name: fmt.Sprint("web", n), DeployURL: d.url, // with a checksum it would be fetched once
			Port: 8080, Publish: &muster.Published{Protocol: muster.TCP},
			Checks: []muster.Check{{Name: "page", Kind: muster.HTTPCheck, Interval: time.Second}},
		})
		if err != nil {
			b.Fatal(err)
		}
		d.hear(b, s.ID, func(s *client.Service) bool { return s.Status == muster.ServiceRunning })
		running = append(running, time.Since(begin))
		d.hear(b, s.ID, func(s *client.Service) bool { return s.Health == muster.HealthOK })
		healthy = append(healthy, time.Since(begin))
		if _, err := d.api.RemoveService(b.Context(), s.ID); err != nil {
			b.Fatal(err)
		}
		d.hear(b, s.ID, func(s *client.Service) bool { return s.Status == muster.ServiceRemoved })
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(running), "ms/running")
	b.ReportMetric(median(healthy), "ms/healthy")
	b.ReportMetric(0, "ns/op")
}

// deployBench is a server, a node with an instance that runs, and what is deployed into it.
type deployBench struct {
	api      *client.Client
	instance muster.InstanceID
	url      string
	last     *client.Service // that was heard of
	seen     chan *client.Service
}

func newDeployBench(b *testing.B) *deployBench {
	b.Helper()
	net, dir, log := newNetwork(b, 0), b.TempDir(), newLogs(b)
	b.Cleanup(func() { sweepGroups(net.id) })
	net.start(hostServer, log, "server", "--data-dir", filepath.Join(dir, "server"))
	key := firstKey(b, filepath.Join(dir, "server"))
	api, err := client.New(client.Options{URL: "http://127.0.0.1:9000", Key: key, Transport: net.transport(hostServer)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = api.Close() })
	command(b, "muster", "image", "build-minimal", "--state-dir", filepath.Join(dir, "agent"))
	net.start(hostServer, log, "agent", "--id", "bench", "--state-dir", filepath.Join(dir, "agent"), "--launcher", "direct", "--cgroup-prefix", net.id, "--cpus", "8")
	files := artifacts(b)
	d := &deployBench{api: api, url: net.serve(b, hostServer, &shelf{files: files}) + "webapp", seen: make(chan *client.Service, 1000)}
	until(b, "the node is HEALTHY", func() bool {
		node, err := api.Node(b.Context(), "bench")
		return err == nil && node.Status == muster.Healthy
	})
	i, err := api.LaunchInstance(b.Context(), muster.LaunchInstanceInput{Type: muster.Small, Image: "minimal"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { endInstance(b, api, i.ID) })
	d.instance = i.ID
	until(b, "the instance is RUNNING", func() bool {
		now, err := api.Instance(b.Context(), i.ID)
		return err == nil && now.Status == muster.Running
	})
	d.watch(b)
	return d
}

// watch begins to hear of the services, until the benchmark ends.
func (d *deployBench) watch(b *testing.B) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	synced, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer close(d.seen)
		_ = d.api.WatchServices(ctx, nil, client.WatchOptions{}, func(e client.Event) error { // it ends with ctx
			if e.Type == muster.EventSynced {
				close(synced)
			}
			if e.Service != nil {
				d.seen <- e.Service
			}
			return nil
		})
	}()
	b.Cleanup(func() { cancel(); <-done })
	select {
	case <-synced:
	case <-done:
		b.Fatal("the watch ended")
	}
}

// hear returns once a service is known to be as wanted.
func (d *deployBench) hear(b *testing.B, id muster.ServiceID, ok func(*client.Service) bool) {
	b.Helper()
	for d.last == nil || d.last.ID != id || !ok(d.last) {
		if d.last = <-d.seen; d.last == nil {
			b.Fatal("the watch ended")
		}
	}
}

func endInstance(b *testing.B, api *client.Client, id muster.InstanceID) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := api.TerminateInstance(ctx, id); err != nil {
		b.Error(err)
		return
	}
	until(b, "the instance is gone", func() bool {
		now, err := api.Instance(ctx, id)
		return err == nil && now.Status == muster.Terminated
	})
}
