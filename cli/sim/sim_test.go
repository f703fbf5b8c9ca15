package sim_test

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/sim"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server until the test ends and returns how to reach it, with its first key.
func serve(t *testing.T, network string) client.Options {
	t.Helper()
	dir := t.TempDir()
	s, err := server.Open(t.Context(), server.Options{
		DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
		HeartbeatInterval: 200 * time.Millisecond, UnhealthyAfter: 30 * time.Second, InstanceNetwork: netip.MustParsePrefix(network),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	o := client.Options{URL: "http://" + s.Addr().String()}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if text, err := keyfile.Read(server.AdminKeyFile(dir)); err == nil {
			o.Key = strings.TrimSpace(string(text))
			return o
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func connect(t *testing.T, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// untilSecond ends a simulation after the first second that is as wanted.
func untilSecond(t *testing.T, wanted func(sim.Second) bool) (context.Context, func(sim.Second)) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx, func(s sim.Second) {
		if wanted(s) {
			cancel()
		}
	}
}

func TestRun_LaunchesAndCleansUp(t *testing.T) {
	at := serve(t, "10.0.0.0/8")
	o := sim.Options{Server: at, Nodes: 7, Instances: 3, Prefix: "x", Clean: true}
	var ctx context.Context
	ctx, o.Each = untilSecond(t, func(s sim.Second) bool { return s.Running == 21 && s.Healthy == 7 && s.Beats > 0 })
	r, err := sim.Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Nodes[muster.Healthy] != 7 || r.Instances[muster.Running] != 21 || r.Launches.Count != 21 || r.Starts.Count != 21 || r.Terminations != 21 || r.Errors != 0 {
		t.Errorf("%+v", r)
	}
	c := connect(t, at)
	nodes, err := c.Nodes(t.Context(), nil, muster.PageInput{})
	if err != nil || nodes.TotalCount != 0 {
		t.Errorf("%+v are left, %v", nodes, err)
	}
	ended := 0
	for i, err := range c.AllInstances(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if i.Status != muster.Terminated || i.Labels[sim.Label] != "x" {
			t.Errorf("left: %s is %s", i.ID, i.Status)
		}
		ended++
	}
	if ended != 21 {
		t.Errorf("%d instances were launched, want 21", ended)
	}
	keys, err := c.AccessKeys(t.Context(), muster.PageInput{})
	if err != nil || len(keys.Edges) != 2 {
		t.Fatalf("%+v, %v", keys, err)
	}
	if k := keys.Edges[1].Node; k.Role != muster.NodeAgent || len(k.Scope.Nodes) != 1 || k.Scope.Nodes[0] != "x-*" || k.Status != muster.KeyRevoked {
		t.Errorf("the agents' key: %+v", k)
	}
}

func TestRun_ReplacesWhatEnds(t *testing.T) {
	at := serve(t, "10.0.0.0/8")
	const wanted = 30
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var launched atomic.Int64
	go func() { // counts what the log tells, not what the simulation says
		err := connect(t, at).WatchInstances(ctx, nil, client.WatchOptions{}, func(e client.Event) error {
			if e.Type == muster.EventChange && e.PreviousStatus == "" && launched.Add(1) == wanted {
				cancel()
			}
			return nil
		})
		_ = err // it ends with ctx
	}()
	r, err := sim.Run(ctx, sim.Options{Server: at, Nodes: 2, Instances: 5, Churn: 100, Lifetime: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if launched.Load() < wanted || r.Terminations == 0 || r.Launches.Count < wanted-1 {
		t.Errorf("%d launched: %+v", launched.Load(), r)
	}
}

func TestRun_SaysThatTheInstanceNetworkIsTooSmall(t *testing.T) {
	at := serve(t, "10.9.0.0/23")
	_, err := sim.Run(t.Context(), sim.Options{Server: at, Nodes: 3, Clean: true})
	want := "the instance network 10.9.0.0/23 has no /24 left for another node: start the server with a larger --instance-network, such as 10.0.0.0/8"
	if muster.CodeOf(err) != muster.Invalid || err.Error() != want {
		t.Errorf("%v (%s)", err, muster.CodeOf(err))
	}
	nodes, err := connect(t, at).Nodes(t.Context(), nil, muster.PageInput{})
	if err != nil || nodes.TotalCount != 0 {
		t.Errorf("%+v are left, %v", nodes, err)
	}
}

func TestRun_Refuses(t *testing.T) {
	for field, o := range map[string]sim.Options{
		"nodes":       {Nodes: -1},
		"instances":   {Instances: -1},
		"listen":      {Listen: "0.0.0.0"},
		"churn":       {Churn: -1},
		"duration":    {Duration: -time.Second},
		"beat-jitter": {Jitter: -1},
		"prefix":      {Prefix: "no spaces"},
		"url":         {Server: client.Options{URL: "nowhere"}},
	} {
		_, err := sim.Run(t.Context(), o)
		if e, ok := err.(*muster.Error); !ok || e.Code != muster.Invalid || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
