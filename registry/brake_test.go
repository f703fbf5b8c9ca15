package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/liveness"
)

// weather is a cluster under virtual time whose nodes beat while they are told
// to, at the real thresholds.
type weather struct {
	*world
	t      *testing.T
	nodes  []*muster.Node
	silent []atomic.Bool
	wall   atomic.Int64 // how far the wall clock was set off
	deaf   atomic.Bool  // the server's own port does not answer
}

func (w *weather) beats(ctx context.Context) {
	for k := range w.nodes {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-time.After(10 * time.Second):
				}
				if !w.silent[k].Load() {
					// a node that was pruned would register again: this one only beats
					_, _ = w.Heartbeat(ctx, muster.HeartbeatInput{UID: w.nodes[k].UID, Incarnation: 1})
				}
			}
		}()
	}
}

func inWeather(t *testing.T, nodes int, test func(w *weather)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := &weather{t: t, silent: make([]atomic.Bool, nodes)}
		w.world = open(t, setup{dir: dir, opts: registry.Options{
			Now: func() time.Time { return time.Now().Add(time.Duration(w.wall.Load())) },
			Probe: func(context.Context) error {
				if w.deaf.Load() {
					return errors.New("connection refused")
				}
				return nil
			},
		}})
		for k := range nodes {
			w.nodes = append(w.nodes, w.join(t, fmt.Sprintf("n%d", k), 4, 4096))
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.beats(ctx)
		time.Sleep(time.Minute) // the start-up grace is over, everybody beats
		test(w)
		cancel()
		w.stop()
	})
}

func (w *weather) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (w *weather) silence(silent bool, nodes ...int) {
	for _, k := range nodes {
		w.silent[k].Store(silent)
	}
}

// want checks the node's statuses, a letter each: H, U, or - when it is gone.
func (w *weather) want(when, statuses string) {
	w.t.Helper()
	got := ""
	for k := range w.nodes {
		if n := w.Node(string(w.nodes[k].UID)); n == nil {
			got += "-"
		} else {
			got += string(n.Status[:1])
		}
	}
	if got != statuses {
		w.t.Fatalf("%s the nodes are %s, want %s", when, got, statuses)
	}
}

func (w *weather) wantBrake(when string, state muster.ConditionStatus) *muster.Condition {
	w.t.Helper()
	brake := w.ClusterHealth().Brake
	if brake.Status != state {
		w.t.Fatalf("%s the brake is %s (%s), want %s", when, brake.Status, brake.Reason, state)
	}
	return brake
}

func TestBrake(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, silent int
		holds         bool
	}{
		"one of one":    {1, 1, false},
		"one of two":    {2, 1, false},
		"two of two":    {2, 2, true},
		"one of three":  {3, 1, false},
		"two of three":  {3, 2, true},
		"two of four":   {4, 2, false},
		"three of five": {5, 3, true},
		"all of ten":    {10, 10, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWeather(t, c.nodes, func(w *weather) {
				for k := range c.silent {
					w.silence(true, k)
				}
				w.pass(45 * time.Second)
				state := muster.Clear
				if c.holds {
					state = muster.Holds
				}
				w.wantBrake("after 45 s", state)
				if n := w.Node(string(w.nodes[0].UID)); n.Status != muster.Unhealthy {
					t.Errorf("the silent node is %s, want UNHEALTHY to be shown", n.Status)
				}
				w.pass(6 * time.Minute)
				if pruned := w.Node(string(w.nodes[0].UID)) == nil; pruned == c.holds {
					t.Errorf("after 6 min pruned is %t while the brake holds is %t", pruned, c.holds)
				}
			})
		})
	}
}

func TestBrake_EndsWhenTheyReturn(t *testing.T) {
	inWeather(t, 5, func(w *weather) {
		before := w.ServerInfo().Revision
		w.silence(true, 0, 1, 2)
		w.pass(20 * time.Minute)
		w.want("after 20 min of silence", "UUUHH")
		held := w.wantBrake("after 20 min of silence", muster.Holds)
		if held.Until == nil || held.Until.Sub(held.Since) != 30*time.Minute {
			t.Errorf("the brake releases at %v, since %v", held.Until, held.Since)
		}
		w.silence(false, 0)
		w.pass(11 * time.Second)
		w.want("after one returned", "HUUHH")
		w.wantBrake("after one returned", muster.Clear)
		w.pass(4 * time.Minute)
		w.want("with a fresh prune clock", "HUUHH")
		w.pass(2 * time.Minute)
		w.want("after the fresh prune clock", "H--HH")
		// 3 turns and the brake, one return and the brake, 2 prunes
		if got := w.ServerInfo().Revision - before; got != 8 {
			t.Errorf("%d changes, want 8", got)
		}
	})
}

func TestBrake_ARealLossIsPrunedWithinItsBound(t *testing.T) {
	inWeather(t, 5, func(w *weather) {
		w.silence(true, 0, 1, 2)
		w.pass(30 * time.Minute)
		w.want("just before the bound", "UUUHH")
		w.pass(time.Minute)
		w.wantBrake("after the bound", muster.Clear)
		w.pass(3 * time.Minute)
		w.want("within the fresh prune clock", "UUUHH")
		w.pass(3 * time.Minute)
		w.want("after the fresh prune clock", "---HH")
		w.silence(true, 3)
		w.pass(6 * time.Minute)
		w.want("one of the two that are left", "----H")
	})
}

func TestBrake_Release(t *testing.T) {
	inWeather(t, 5, func(w *weather) {
		_, _, err := w.ReleaseBrake(ctx, "")
		wantCode(t, err, muster.Conflict)
		w.silence(true, 0, 1, 2)
		w.pass(10 * time.Minute)
		w.wantBrake("after 10 min", muster.Holds)
		brake, _, err := w.ReleaseBrake(ctx, "the rack burnt down")
		if err != nil || brake.Reason != "the rack burnt down" {
			t.Fatalf("release: %+v, %v", brake, err)
		}
		w.pass(4 * time.Minute)
		w.want("within the fresh prune clock", "UUUHH")
		w.wantBrake("after the release", muster.Clear)
		w.pass(2 * time.Minute)
		w.want("after the fresh prune clock", "---HH")
	})
}

func TestBrake_HoldsOverARestart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, setup{dir: dir})
		for k := range 3 {
			w.join(t, fmt.Sprintf("n%d", k), 4, 4096)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if !w.View().Holds(muster.Brake) {
			t.Fatal("the brake does not hold")
		}
		w.stop()
		w = open(t, setup{dir: dir})
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if !w.View().Holds(muster.Brake) {
			t.Error("the brake was let go before anybody could beat")
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if w.Node("n0") == nil {
			t.Error("a node was pruned while the brake holds")
		}
		w.stop()
	})
}

func TestLiveness_WhatIsNotSilence(t *testing.T) {
	for name, c := range map[string]struct {
		happens   func(w *weather)
		postponed bool
	}{
		"the wall clock is set a day forward": {func(w *weather) { w.wall.Store(int64(24 * time.Hour)) }, true},
		"the wall clock is set a day back":    {func(w *weather) { w.wall.Store(int64(-24 * time.Hour)) }, true},
		"the port does not answer": {func(w *weather) {
			w.deaf.Store(true)
			w.silence(true, 0, 1, 2, 3, 4)
			w.pass(10 * time.Minute)
			w.want("while the port does not answer", "HHHHH")
			if until := w.ClusterHealth().Conditions[0].Until; until != nil {
				w.t.Errorf("expiry is said to be postponed until %s, which nobody can know", until)
			}
			w.deaf.Store(false)
			w.silence(false, 0, 1, 2, 3, 4)
		}, true},
		"nothing": {func(*weather) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWeather(t, 5, func(w *weather) {
				c.happens(w)
				w.pass(5 * time.Second)
				if got := w.View().Holds(muster.ExpiryPostponed); got != c.postponed {
					t.Errorf("expiry postponed: %t, want %t", got, c.postponed)
				}
				w.pass(10 * time.Minute)
				w.want("ten minutes later", "HHHHH")
				if w.View().Holds(muster.ExpiryPostponed) {
					t.Error("expiry is postponed ten minutes later")
				}
				w.silence(true, 4)
				w.pass(41 * time.Second)
				w.want("when one falls silent", "HHHHU") // liveness works as before
			})
		})
	}
}

func TestLiveness_BeatsAsOftenAsSweeps(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, setup{dir: dir, opts: registry.Options{
			Liveness:      liveness.Options{Interval: time.Second, UnhealthyAfter: 3 * time.Second, PruneAfter: time.Minute},
			SweepInterval: time.Second,
		}})
		w.join(t, "n1", 4, 4096)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := w.Node("n1"); n.Status != muster.Unhealthy || w.View().Holds(muster.ExpiryPostponed) {
			t.Errorf("after 10 s of silence it is %s; expiry postponed: %t", n.Status, w.View().Holds(muster.ExpiryPostponed))
		}
		w.stop()
	})
}

func TestLiveness_Evidence(t *testing.T) {
	inWeather(t, 3, func(w *weather) {
		n := w.nodes[0]
		sent := time.Now().Add(3 * time.Second)
		if _, err := w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: 1, SentAt: &sent}); err != nil {
			t.Fatal(err)
		}
		in, on := launch(muster.Nano), string(n.UID)
		in.NodeID = &on
		i := w.launch(t, in)
		if e := w.NodeEvidence(w.Node(string(n.UID))); e != nil {
			t.Errorf("a healthy node has evidence %+v", e)
		}
		w.silence(true, 0)
		w.pass(45 * time.Second)
		e := w.NodeEvidence(w.Node(string(n.UID)))
		if e == nil || *e.MissedBeats != 4 || *e.ClockSkew != 3*time.Second || *e.Silence != 45*time.Second || e.Reason != "no beat for 30s" {
			t.Errorf("evidence %+v", e)
		}
		if e := w.InstanceEvidence(i); e == nil || e.MissedBeats == nil || *e.MissedBeats != 4 || e.Reason != "its node n0 is UNHEALTHY: no beat for 30s" {
			t.Errorf("evidence of an instance on it %+v", e)
		}
		was := w.Node(string(n.UID))
		w.silence(false, 0)
		w.pass(11 * time.Second)
		if e := w.NodeEvidence(was); e == nil || e.Reason != "no beat for 30s" || e.LastBeat != nil || e.MissedBeats != nil {
			t.Errorf("evidence of the node as it was before it returned: %+v", e)
		}
	})
}

func TestNode_TombstoneAndForget(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		n := w.join(t, "n1", 4, 4096)
		if _, _, err := w.CordonNode(ctx, "n1", "disk swap"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		in := nodeInput("n1", 4, 4096)
		in.UID, in.Incarnation = &n.UID, 2
		out, err := w.RegisterNode(ctx, in)
		if err != nil || out.Node.UID != n.UID || out.Node.Schedulable {
			t.Fatalf("it returned as %+v, %v; want itself, cordoned", out, err)
		}
		if _, _, err := w.RemoveNode(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		in.Incarnation = 3
		_, err = w.RegisterNode(ctx, in)
		wantCode(t, err, muster.Forbidden)
		if _, _, err := w.ForgetNode(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		if out, err := w.RegisterNode(ctx, in); err != nil || out.Node.UID != n.UID {
			t.Fatalf("forgotten, it returned as %+v, %v", out, err)
		}
		_, _, err = w.ForgetNode(ctx, "n1")
		wantCode(t, err, muster.Conflict)
		_, _, err = w.ForgetNode(ctx, "n2")
		wantCode(t, err, muster.NotFound)
		time.Sleep(73 * time.Hour)
		synctest.Wait()
		if got := w.View().NodeByUID(n.UID); got != nil {
			t.Errorf("the tombstone is still there after 73 h: %+v", got)
		}
		out, err = w.RegisterNode(ctx, in)
		if err != nil || out.Node.UID == n.UID {
			t.Errorf("after its tombstone it is %+v, %v", out, err)
		}
		checkLog(t, w)
	})
}
