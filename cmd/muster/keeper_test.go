package main

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// keeper is the agent of one node, and the people who use the node. It does one
// thing after the other, each until it is acknowledged.
type keeper struct {
	t      *testing.T
	client *client.Client
	oracle *oracle
	name   string
	uid    muster.NodeUID
	epoch  string

	live     []*client.Instance // the oldest first
	sequence int64
	applied  int64 // the highest revision that an answer has told
	launched int
}

// ahead is how many changes a keeper may be ahead of the oracle, which has to see
// each before compaction takes it away.
const ahead = 300

// join registers a node.
func (s *server) join(o *oracle, k int) *keeper {
	s.t.Helper()
	c := s.client()
	input := crashNode(k)
	half := "even"
	if k%2 == 1 {
		half = "odd"
	}
	input.Labels = muster.Map{"half": half, "name": string(input.ID)}
	joined, err := c.RegisterNode(s.t.Context(), input)
	if err != nil {
		s.t.Fatal(err)
	}
	return &keeper{t: s.t, client: c, oracle: o, name: string(input.ID), uid: joined.Node.UID, epoch: joined.Server.Epoch}
}

// insist repeats a call until it is acknowledged or ctx ends.
func (k *keeper) insist(ctx context.Context, what string, call func() error) {
	for ctx.Err() == nil {
		err := call()
		if err == nil {
			return
		}
		if muster.CodeOf(err) != muster.Unavailable {
			k.t.Errorf("%s on %s: %v", what, k.name, err)
			return
		}
	}
}

// run goes round and round until it is told to stop, and ends a round that it has begun.
func (k *keeper) run(ctx context.Context, stop chan struct{}) {
	for n := 0; ctx.Err() == nil; n++ {
		select {
		case <-stop:
			return
		default:
		}
		k.oracle.reach(ctx, k.applied-ahead)
		k.insist(ctx, "cordon", func() error {
			_, err := k.client.CordonNode(ctx, k.name, fmt.Sprintf("time %d", n))
			return err
		})
		k.launch(ctx)
		k.report(ctx)
		k.insist(ctx, "uncordon", func() error {
			node, err := k.client.UncordonNode(ctx, k.name)
			if err == nil {
				k.applied = max(k.applied, node.Revision)
			}
			return err
		})
		k.launch(ctx)
		if len(k.live) > 4 {
			k.terminate(ctx)
			k.report(ctx)
		}
	}
}

// launch launches an instance on the node, cordoned or not.
func (k *keeper) launch(ctx context.Context) {
	k.launched++
	input := crashLaunch(fmt.Sprintf("%s-%d", k.name, k.launched))
	input.NodeSelector = muster.Map{"name": k.name}
	input.Queue = true
	k.insist(ctx, "launch", func() error {
		i, err := k.client.LaunchInstance(ctx, input)
		if err == nil {
			k.live = append(k.live, i)
			k.applied = max(k.applied, i.Revision)
		}
		return err
	})
}

// terminate ends the oldest instance.
func (k *keeper) terminate(ctx context.Context) {
	oldest := k.live[0]
	k.insist(ctx, "terminate", func() error {
		i, err := k.client.TerminateInstance(ctx, oldest.ID)
		if err == nil {
			k.live = k.live[1:]
			k.applied = max(k.applied, i.Revision)
		}
		return err
	})
}

// report tells of all instances that have a place: they run, but each fifth failed.
func (k *keeper) report(ctx context.Context) {
	k.sequence++
	input := muster.ReportInstancesInput{UID: k.uid, Incarnation: 1, Sequence: k.sequence, Epoch: k.epoch, AppliedRevision: k.applied}
	for n, i := range k.live {
		k.place(ctx, n)
		if i = k.live[n]; i.Machine == "" {
			continue
		}
		status := muster.Running
		if number, _ := i.ID.Number(); number%5 == 0 {
			status = muster.Failed
		}
		input.Instances = append(input.Instances, muster.InstanceReportInput{
			Machine: i.Machine, Epoch: k.epoch, ID: i.ID, Generation: i.Generation, Status: status, Addr: i.Addr, Reason: "as reported",
		})
	}
	k.insist(ctx, "report", func() error {
		_, err := k.client.ReportInstances(ctx, input)
		return err
	})
}

// place asks where an instance is that had to wait.
func (k *keeper) place(ctx context.Context, n int) {
	if k.live[n].Status != muster.Pending {
		return
	}
	k.insist(ctx, "look", func() error {
		i, err := k.client.Instance(ctx, k.live[n].ID)
		if err == nil {
			k.live[n] = i
			k.applied = max(k.applied, i.Revision)
		}
		return err
	})
}

// keep has all keepers at work until the function that it returns is called.
func keep(ctx context.Context, keepers []*keeper) (end func()) {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for _, k := range keepers {
		wait.Go(func() { k.run(ctx, stop) })
	}
	return func() {
		close(stop)
		wait.Wait()
	}
}
