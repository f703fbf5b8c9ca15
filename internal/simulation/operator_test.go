package simulation_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
)

// operator is somebody who wants something all the time, and insists until
// answered.
type operator struct {
	c        *cluster
	name     string
	link     *link
	dice     *dice
	requests int
	sent     []muster.LaunchInstanceInput // that were answered
	made     map[string]muster.InstanceID // by requestId
	deployed []muster.DeployServiceInput  // that were answered
	services map[string]muster.ServiceID  // by requestId
}

func (c *cluster) newOperator(k int) *operator {
	name := fmt.Sprintf("operator-%d", k)
	return &operator{c: c, name: name, link: c.newLink(name), dice: newDice(c.seed, name), made: map[string]muster.InstanceID{}, services: map[string]muster.ServiceID{}}
}

func (o *operator) work(ctx context.Context) {
	for sleep(ctx, o.dice.span(0, o.c.plan.pause)) {
		o.wish(ctx)
	}
}

func (o *operator) wish(ctx context.Context) {
	if o.dice.chance(0.4) {
		o.serviceWish(ctx)
		return
	}
	switch o.dice.below(24) {
	case 0, 1, 2, 3, 4, 5, 6:
		o.launch(ctx)
	case 7:
		o.again(ctx)
	case 8, 9, 10:
		o.instance(ctx, "start", func(ctx context.Context, l *life, id muster.InstanceID) (*muster.Instance, int64, error) {
			return l.StartInstance(ctx, id)
		})
	case 11, 12:
		o.instance(ctx, "stop", func(ctx context.Context, l *life, id muster.InstanceID) (*muster.Instance, int64, error) {
			return l.StopInstance(ctx, id)
		})
	case 13, 14, 15:
		o.instance(ctx, "restart", func(ctx context.Context, l *life, id muster.InstanceID) (*muster.Instance, int64, error) {
			return l.RestartInstance(ctx, id)
		})
	case 16, 17, 18, 19:
		o.instance(ctx, "terminate", func(ctx context.Context, l *life, id muster.InstanceID) (*muster.Instance, int64, error) {
			return l.TerminateInstance(ctx, id)
		})
	default:
		o.nodeWish(ctx)
	}
}

func (o *operator) nodeWish(ctx context.Context) {
	id := pick(o.dice, o.c.nodes).name
	switch o.dice.below(8) {
	case 0, 1:
		o.node(ctx, "cordon", func(ctx context.Context, l *life) (*muster.Node, int64, error) { return l.CordonNode(ctx, id, "") })
	case 2, 3, 4:
		o.node(ctx, "uncordon", func(ctx context.Context, l *life) (*muster.Node, int64, error) { return l.UncordonNode(ctx, id) })
	case 5:
		if o.dice.chance(0.3) {
			o.node(ctx, "remove", func(ctx context.Context, l *life) (*muster.Node, int64, error) { return l.RemoveNode(ctx, id) })
		}
	case 6:
		o.node(ctx, "forget", func(ctx context.Context, l *life) (*muster.Node, int64, error) { return l.ForgetNode(ctx, id) })
	case 7:
		if o.dice.chance(0.3) {
			o.release(ctx)
		}
	}
}

// told is what a mutation answers.
type told[T any] struct {
	object   T
	revision int64
}

// insist asks until there is an answer that says what happened. Codes are those
// that a caller can bring upon itself.
func insist[T any](ctx context.Context, o *operator, what string, codes []muster.Code, do func(context.Context, *life) (T, int64, error)) (told[T], bool) {
	as := muster.Principal{Name: o.name, Role: muster.Operator}
	for range 8 {
		out, err := call(ctx, o.link, what, func(ctx context.Context, l *life) (told[T], error) {
			object, revision, err := do(muster.WithPrincipal(ctx, as), l)
			if head := l.View().Head().Revision; err == nil && head < revision && !l.isDead() {
				o.c.fault("%s was answered with revision %d while %d is the newest that can be read", what, revision, head)
			}
			return told[T]{object, revision}, err
		})
		switch {
		case err == nil:
			return out, true
		case slices.Contains(codes, muster.CodeOf(err)):
			o.c.note("%s: %s: %s", o.name, what, muster.CodeOf(err))
			return out, false
		case muster.CodeOf(err) != muster.Unavailable && !strings.Contains(err.Error(), errOdd.Error()):
			o.c.fault("%s: %s: unexpected: %v", o.name, what, err)
			return out, false
		}
		if !sleep(ctx, o.dice.span(0, 4*time.Second)) {
			break
		}
	}
	o.c.note("%s: %s: gave up", o.name, what)
	return told[T]{}, false
}

func (o *operator) launch(ctx context.Context) {
	o.requests++
	in := muster.LaunchInstanceInput{
		Type:      pick(o.dice, []muster.InstanceType{muster.Nano, muster.Nano, muster.Micro, muster.Micro, muster.Small, muster.Medium}),
		Image:     pick(o.dice, []string{"minimal", "minimal", "other", "absent"}),
		Command:   pick(o.dice, [][]string{nil, nil, nil, {"stubborn"}, {"exit", "0", "done"}, {"exit", "3", "oh"}, {"no such program"}}),
		Queue:     o.dice.chance(0.4),
		RequestID: fmt.Sprintf("%s/%d", o.name, o.requests),
	}
	in.Labels = muster.Map{"request": in.RequestID}
	if in.Image == "absent" && !in.Queue {
		in.Image = "minimal"
	}
	if in.Queue && o.dice.chance(0.7) {
		timeout := o.dice.span(time.Second, 5*time.Minute)
		in.QueueTimeout = &timeout
	}
	switch o.dice.below(5) {
	case 0:
		in.NodeSelector = muster.Map{"zone": pick(o.dice, []string{"a", "b"})}
	case 1:
		in.NodeID = &pick(o.dice, o.c.nodes).name
	}
	o.send(ctx, in)
}

// again repeats an earlier launch: it gives the same instance.
func (o *operator) again(ctx context.Context) {
	if len(o.sent) > 0 {
		o.send(ctx, pick(o.dice, o.sent))
	}
}

func (o *operator) send(ctx context.Context, in muster.LaunchInstanceInput) {
	out, ok := insist(ctx, o, "launch", []muster.Code{muster.NoCapacity, muster.Limit, muster.NotFound, muster.Invalid}, // no node has the image now
		func(ctx context.Context, l *life) (*muster.Instance, int64, error) { return l.LaunchInstance(ctx, in) })
	if !ok {
		return
	}
	i := out.object
	o.c.note("%s: %s is %s, %s", o.name, in.RequestID, i.ID, i.Status)
	if before, there := o.made[in.RequestID]; there && before != i.ID {
		o.c.fault("%s gave %s and then %s", in.RequestID, before, i.ID)
	}
	if _, there := o.made[in.RequestID]; !there {
		o.sent = append(o.sent, in)
	}
	o.made[in.RequestID] = i.ID
	o.c.book.told("launch", string(i.ID), i.Revision, i)
}

// anInstance is one that there is, or a made-up one.
func (o *operator) anInstance() muster.InstanceID {
	ids := []muster.InstanceID{"i-999999"}
	if l := o.c.life.Load(); l != nil {
		for i := range l.View().Instances() {
			if i.Status != muster.Terminated {
				ids = append(ids, i.ID, i.ID, i.ID)
			}
		}
	}
	return pick(o.dice, ids)
}

func (o *operator) instance(ctx context.Context, what string, do func(context.Context, *life, muster.InstanceID) (*muster.Instance, int64, error)) {
	id := o.anInstance()
	out, ok := insist(ctx, o, what, []muster.Code{muster.NotFound, muster.Conflict, muster.NoCapacity},
		func(ctx context.Context, l *life) (*muster.Instance, int64, error) { return do(ctx, l, id) })
	if ok {
		o.c.note("%s: %s %s: %s, generation %d", o.name, what, id, out.object.Status, out.object.Generation)
		o.c.book.told(what, string(id), out.object.Revision, out.object)
	}
}

func (o *operator) node(ctx context.Context, what string, do func(context.Context, *life) (*muster.Node, int64, error)) {
	out, ok := insist(ctx, o, what, []muster.Code{muster.NotFound, muster.Conflict}, do)
	if ok {
		o.c.note("%s: %s %s", o.name, what, out.object.ID)
		o.c.book.told(what, string(out.object.UID), out.object.Revision, out.object)
	}
}

func (o *operator) release(ctx context.Context) {
	out, ok := insist(ctx, o, "release", []muster.Code{muster.Conflict},
		func(ctx context.Context, l *life) (*muster.Condition, int64, error) { return l.ReleaseBrake(ctx, "") })
	if ok {
		o.c.note("%s: released the brake", o.name)
		o.c.book.told("release", string(out.object.Name), out.object.Revision, out.object)
	}
}
