package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/hollow"
	"github.com/muster-cloud/muster/client"
)

// simulation is one run.
type simulation struct {
	o      Options
	dir    string // the agents' identities
	labels muster.Map
	api    *client.Client // of launches and watches
	meter  *meter         // of the agents
	mirror *mirror
	began  time.Time
	result *Result // as of the end, before the clean-up
}

// Run runs a simulation until ctx ends or its duration is over, cleans up if it
// was asked to, and returns what happened. INVALID: a setting, or one of the
// server's, does not allow it.
func Run(ctx context.Context, o Options) (*Result, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &simulation{o: o, labels: muster.Map{Label: o.Prefix}, mirror: newMirror(), began: time.Now()}
	var err error
	if s.api, err = s.connect(o.Parallel+2, o.Server.Key); err != nil {
		return nil, err
	}
	defer func() { _ = s.api.Close() }()
	key, giveBack, err := s.agentsKey(ctx)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	agents, err := s.connect(o.Connections, key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = agents.Close() }()
	s.meter = &meter{Client: agents, jitter: o.Jitter}
	if s.dir, err = os.MkdirTemp("", "muster-sim-"); err != nil {
		return nil, fmt.Errorf("make a directory for the agents' identities: %w", err)
	}
	defer func() { _ = os.RemoveAll(s.dir) }()
	if err := s.run(ctx); err != nil {
		return nil, err
	}
	s.result.Terminations, s.result.Errors, s.result.LastError = s.meter.terminations.Load(), s.meter.errors.Load(), s.meter.lastError()
	return s.result, nil
}

// connect returns a client with at most so many connections, which it keeps.
func (s *simulation) connect(connections int, key string) (*client.Client, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second} // else those in vain would use the connections up
	o := s.o.Server
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, IdleConnTimeout: 90 * time.Second,
	}
	if o.Transport != nil {
		transport.TLSClientConfig = o.Transport.TLSClientConfig
	}
	o.Key, o.UserAgent, o.Transport = key, "muster-sim/"+s.o.Version, transport
	return client.New(o)
}

// run starts everything, and ends it in order: the load, the agents, and what
// they left.
func (s *simulation) run(ctx context.Context) error {
	group, failed := errgroup.WithContext(ctx)
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	for k := range s.o.Nodes {
		group.Go(func() error { return s.agent(alive, k) })
	}
	group.Go(func() error { return s.mirror.followNodes(alive, s.api, s.labels) })
	group.Go(func() error {
		return s.mirror.followInstances(alive, s.api, s.labels, func(e client.Event) { s.meter.starts.add(e.At.Sub(e.Instance.CreatedAt)) })
	})
	group.Go(func() error { s.tick(alive); return nil })
	group.Go(func() error {
		defer stop()
		err := s.stay(failed)
		s.result = s.sum()
		if s.o.Clean {
			err = errors.Join(err, s.empty(alive))
		}
		return err
	})
	err := group.Wait()
	if s.o.Clean {
		err = errors.Join(err, s.takeOut(context.WithoutCancel(ctx)))
	}
	return err
}

// stay loads the server for as long as the simulation lasts.
func (s *simulation) stay(ctx context.Context) error {
	if s.o.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.o.Duration)
		defer cancel()
	}
	if err := s.load(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// agent is one agent at work, from its turn on.
func (s *simulation) agent(ctx context.Context, k int) error {
	if turn := s.o.Ramp * time.Duration(k) / time.Duration(s.o.Nodes); !pause(ctx, turn) {
		return nil
	}
	name := fmt.Sprintf("%s-%d", s.o.Prefix, k+1)
	room := s.o.Instances*3/2 + 4 // some more, so that what is replaced need not wait for what it replaces
	size, _ := muster.Nano.Info()
	one, err := agent.New(agent.Options{
		Driver: hollow.New(hollow.Options{Lifetime: s.o.Lifetime}), Registry: s.meter, StateDir: filepath.Join(s.dir, name),
		ID: muster.NodeID(name), Listen: net.JoinHostPort(s.o.Listen, "0"), CPUs: room, MemoryMB: room * size.MemLimitMB,
		Labels: s.labels, Version: s.o.Version, Logger: s.o.Logger,
	})
	if err != nil {
		return err
	}
	return one.Run(ctx)
}
