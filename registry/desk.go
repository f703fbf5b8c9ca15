package registry

import (
	"context"
	"sync"

	"github.com/muster-cloud/muster"
)

// desk is where what the server asks of agents meets the agents: they come to it,
// over connections that they opened, and go on waiting there. It is not part of the
// state.
type desk struct {
	mu     sync.Mutex
	visits map[muster.NodeUID]*visit
	last   int64 // id of a request
}

// visit is an agent at the desk.
type visit struct {
	incarnation int64
	requests    chan *muster.AgentRequest
	gone        chan struct{} // closed when it has left
	waiting     map[int64]chan<- *muster.AgentAnswerInput
}

// enter begins an agent's visit; an earlier one of the same node is over.
func (d *desk) enter(uid muster.NodeUID, incarnation int64) *visit {
	v := &visit{
		incarnation: incarnation, requests: make(chan *muster.AgentRequest), gone: make(chan struct{}),
		waiting: map[int64]chan<- *muster.AgentAnswerInput{},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.visits == nil {
		d.visits = map[muster.NodeUID]*visit{}
	}
	if before := d.visits[uid]; before != nil {
		close(before.gone)
	}
	d.visits[uid] = v
	return v
}

// leave ends a visit, unless a later one has.
func (d *desk) leave(uid muster.NodeUID, v *visit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.visits[uid] == v {
		delete(d.visits, uid)
		close(v.gone)
	}
}

func (d *desk) visit(uid muster.NodeUID) *visit {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.visits[uid]
}

// ask asks a node's agent and waits for its answer; nil when the agent is not
// there, or left.
func (d *desk) ask(ctx context.Context, uid muster.NodeUID, request muster.AgentRequest) (*muster.AgentAnswerInput, error) {
	v := d.visit(uid)
	if v == nil {
		return nil, nil
	}
	answer := make(chan *muster.AgentAnswerInput, 1)
	d.mu.Lock()
	d.last++
	request.ID = d.last
	v.waiting[request.ID] = answer
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(v.waiting, request.ID)
	}()
	select {
	case v.requests <- &request:
	case <-v.gone:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case a := <-answer:
		return a, nil
	case <-v.gone:
		return nil, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answer hands an answer over, and reports whether somebody still waited for it.
func (d *desk) answer(in *muster.AgentAnswerInput) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.visits[in.UID]
	if v == nil || v.incarnation != in.Incarnation || v.waiting[in.ID] == nil {
		return false
	}
	v.waiting[in.ID] <- in // there is room for the one
	delete(v.waiting, in.ID)
	return true
}

// AgentRequests yields what the server asks a node's agent for until ctx ends, a newer
// connection of the node takes its place (CONFLICT), or yield returns an error.
// UNKNOWN_NODE: register again; SUPERSEDED: stop.
func (r *Registry) AgentRequests(ctx context.Context, uid muster.NodeUID, incarnation int64, yield func(*muster.AgentRequest) error) error {
	if _, err := r.speaker(ctx, r.View(), uid, incarnation); err != nil {
		return err
	}
	v := r.desk.enter(uid, incarnation)
	defer r.desk.leave(uid, v)
	for {
		select {
		case request := <-v.requests:
			if err := yield(request); err != nil {
				return err
			}
		case <-v.gone:
			return muster.Errorf(muster.Conflict, "a newer connection of the node took the place of this one")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// AnswerAgentRequest takes an agent's answer, and reports whether somebody still
// waited for it.
func (r *Registry) AnswerAgentRequest(ctx context.Context, in muster.AgentAnswerInput) (wanted bool, err error) {
	if err := in.Validate(); err != nil {
		return false, err
	}
	if _, err := r.speaker(ctx, r.View(), in.UID, in.Incarnation); err != nil {
		return false, err
	}
	return r.desk.answer(&in), nil
}
