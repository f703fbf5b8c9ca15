package sim

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
)

const (
	// again is the pause before a call that may pass is tried again.
	again = time.Second
	// cleanTimeout bounds the clean-up.
	cleanTimeout = 5 * time.Minute
)

// load launches and replaces instances until ctx ends.
func (s *simulation) load(ctx context.Context) error {
	if !s.awaitNodes(ctx) {
		return nil
	}
	var next atomic.Int64 // request ids are never used twice
	total := int64(s.o.Nodes * s.o.Instances)
	group, failed := errgroup.WithContext(ctx)
	for range s.o.Parallel {
		group.Go(func() error {
			for failed.Err() == nil {
				k := next.Add(1)
				if k > total {
					return nil
				}
				if err := s.launch(failed, k); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil || s.o.Churn == 0 {
		return err
	}
	next.Store(total)
	return s.churn(ctx, &next)
}

// awaitNodes waits until every agent has registered, and reports whether they have.
func (s *simulation) awaitNodes(ctx context.Context) bool {
	for s.meter.registrations.Load() < int64(s.o.Nodes) {
		if !pause(ctx, 50*time.Millisecond) {
			return false
		}
	}
	return true
}

// launch launches one instance on a node of ours, and repeats the request until
// it was taken or will never be.
func (s *simulation) launch(ctx context.Context, k int64) error {
	input := muster.LaunchInstanceInput{
		Type: muster.Nano, Image: "minimal", Name: fmt.Sprintf("%s-%d", s.o.Prefix, k), RequestID: fmt.Sprintf("%s-%d", s.o.Prefix, k),
		Labels: s.labels, NodeSelector: s.labels,
	}
	for {
		began := time.Now()
		_, err := s.api.LaunchInstance(ctx, input)
		s.meter.failed(ctx, err)
		switch {
		case err == nil:
			s.meter.launches.add(time.Since(began))
			return nil
		case ctx.Err() != nil:
			return nil
		case !passes(err):
			return err
		}
		if !pause(ctx, again) {
			return nil
		}
	}
}

// passes reports whether the same call may do better later.
func passes(err error) bool {
	switch muster.CodeOf(err) {
	case muster.Unavailable, muster.NoCapacity, muster.Limit:
		return true
	}
	return false
}

// churn replaces instances at the rate that was asked for, or as fast as the
// server takes it.
func (s *simulation) churn(ctx context.Context, next *atomic.Int64) error {
	ids := make(chan muster.InstanceID)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(ids)
		ticker := time.NewTicker(time.Duration(float64(time.Second) / s.o.Churn))
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			id := s.mirror.take()
			if id == "" {
				continue
			}
			select {
			case <-ctx.Done():
				return nil
			case ids <- id:
			}
		}
	})
	for range s.o.Parallel {
		group.Go(func() error {
			for id := range ids {
				s.terminate(ctx, id)
				if err := s.launch(ctx, next.Add(1)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// terminate asks for the end of an instance, which may be gone already.
func (s *simulation) terminate(ctx context.Context, id muster.InstanceID) {
	for {
		_, err := s.api.TerminateInstance(ctx, id)
		switch {
		case err == nil:
			s.meter.terminations.Add(1)
			return
		case muster.CodeOf(err) == muster.NotFound:
			return
		}
		s.meter.failed(ctx, err)
		if !passes(err) || !pause(ctx, again) {
			return
		}
	}
}

// empty terminates every instance of the simulation and waits until their nodes
// have confirmed it.
func (s *simulation) empty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	group := new(errgroup.Group)
	group.SetLimit(s.o.Parallel)
	for i, err := range s.api.AllInstances(ctx, &muster.InstanceFilter{Labels: s.labels}) {
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		if i.Status != muster.Terminated {
			group.Go(func() error { s.terminate(ctx, i.ID); return nil })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for {
		_, instances := s.mirror.counts()
		delete(instances, muster.Lost) // its node has left, so nobody confirms
		if len(instances) == 0 {
			return nil
		}
		if !pause(ctx, 100*time.Millisecond) {
			return muster.Errorf(muster.Unavailable, "instances are left after %s of cleaning up: %v; terminate them with muster instance terminate", cleanTimeout, instances)
		}
	}
}

// takeOut takes the simulation's nodes out of the registry, once their agents
// have ended. They are forgotten too: nobody will ask for them again.
func (s *simulation) takeOut(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	group := new(errgroup.Group)
	group.SetLimit(s.o.Parallel)
	for n, err := range s.api.AllNodes(ctx, &muster.NodeFilter{Labels: s.labels}) {
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		group.Go(func() error {
			if _, err := s.api.RemoveNode(ctx, string(n.UID)); err != nil {
				return err
			}
			_, err := s.api.ForgetNode(ctx, string(n.UID))
			return err
		})
	}
	return group.Wait()
}
