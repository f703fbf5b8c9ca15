package registry

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// Changes returns a page of the change log after a cursor, or from the oldest
// that is kept; with an object id, an instance's or a node's, only its changes.
func (r *Registry) Changes(ctx context.Context, since *muster.Cursor, objectID *string, first *int) (*muster.ChangeConnection, error) {
	limit, err := muster.PageInput{First: first}.Limit()
	if err != nil {
		return nil, err
	}
	after := r.Hub.Oldest().Revision
	if since != nil {
		at, err := r.Hub.Check(ctx, *since)
		if err != nil {
			return nil, err
		}
		after = at.Revision
	}
	changes, err := r.seenChanges(ctx, objectID, after, limit+1)
	if err != nil {
		return nil, err
	}
	return r.changePage(changes, limit, since != nil), nil
}

// seenBlock is how much of the log is read at once for a caller who sees a part of it:
// it may be long until something comes that they see.
const seenBlock = 500

// seenChanges reads on until it has as many changes as are wanted that the caller sees.
func (r *Registry) seenChanges(ctx context.Context, objectID *string, after int64, want int) ([]*muster.Change, error) {
	v, s := r.View(), sightOf(ctx)
	block := want
	if !s.all() {
		block = max(want, seenBlock)
	}
	var seen []*muster.Change
	for {
		changes, err := r.changesAfter(ctx, objectID, after, block)
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			after = c.Revision
			if s.change(v, c) {
				seen = append(seen, c)
			}
		}
		if len(changes) < block || len(seen) >= want {
			return seen[:min(len(seen), want)], nil
		}
	}
}

func (r *Registry) changesAfter(ctx context.Context, objectID *string, after int64, limit int) ([]*muster.Change, error) {
	if objectID == nil {
		return r.History.ChangesAfter(ctx, after, limit)
	}
	if err := muster.CheckID("objectId", *objectID); err != nil {
		return nil, err
	}
	return r.History.ChangesOfAfter(ctx, r.View().changed(*objectID), after, limit)
}

// changed is what the log has an object as: a node by its uid, also one that was pruned or
// removed and is remembered, of several of that name the live one or the last that was heard of.
func (v View) changed(id string) string {
	if n := v.LiveNode(id); n != nil {
		return string(n.UID)
	}
	var last *muster.Node
	for n := range rows[*muster.Node](v, tableNode, byName, muster.NodeID(id)) {
		if last == nil || n.LastSeen.After(last.LastSeen) {
			last = n
		}
	}
	if last != nil {
		return string(last.UID)
	}
	return id
}

func (r *Registry) changePage(changes []*muster.Change, limit int, later bool) *muster.ChangeConnection {
	info := &muster.PageInfo{HasNextPage: len(changes) > limit, HasPreviousPage: later}
	changes = changes[:min(len(changes), limit)]
	page := &muster.ChangeConnection{Edges: make([]*muster.ChangeEdge, 0, len(changes)), PageInfo: info, Oldest: r.Hub.Oldest()}
	for _, c := range changes {
		page.Edges = append(page.Edges, &muster.ChangeEdge{Cursor: c.Cursor(), Node: c})
	}
	if n := len(changes); n > 0 {
		start, end := changes[0].Cursor().String(), changes[n-1].Cursor().String()
		info.StartCursor, info.EndCursor = &start, &end
	}
	return page
}

// LastChanges returns the n newest changes of each object, newest first, by one
// read of the log.
func (r *Registry) LastChanges(ctx context.Context, objectIDs []string, n int) (map[string][]*muster.Change, error) {
	return r.History.LastChanges(ctx, objectIDs, n)
}

// WatchNodes follows the changes of the nodes that match.
func (r *Registry) WatchNodes(ctx context.Context, f *muster.NodeFilter, q watch.Request) (<-chan *muster.Event, error) {
	return r.Hub.Serve(ctx, watch.Spec{
		Match:    r.Seen(ctx).matched(func(c *muster.Change) (bool, bool) { return matchNode(c, f) }),
		Snapshot: r.Seen(ctx).snapshot(func(v View) []walk { return []walk{v.presentNodes(f.Matches)} }),
	}, q)
}

// WatchInstances follows the changes of the instances that match.
func (r *Registry) WatchInstances(ctx context.Context, f *muster.InstanceFilter, q watch.Request) (<-chan *muster.Event, error) {
	if _, err := r.Seen(ctx).view().resolve(f); err != nil {
		return nil, err
	}
	// Resolved anew each time: who joins later may mean another node by the same name.
	present := func(v View) *muster.InstanceFilter {
		resolved, err := v.resolve(f)
		if err != nil {
			return &muster.InstanceFilter{NodeUID: goneNode}
		}
		return resolved
	}
	return r.Hub.Serve(ctx, watch.Spec{
		Match:    r.Seen(ctx).matched(func(c *muster.Change) (bool, bool) { return matchInstance(c, present(r.View())) }),
		Snapshot: r.Seen(ctx).snapshot(func(v View) []walk { return []walk{v.presentInstances(present(v).Matches)} }),
	}, q)
}

// WatchServices follows the changes of the services that match. Their health is that
// which their agents report: what their nodes and instances do is told by those.
func (r *Registry) WatchServices(ctx context.Context, f *muster.ServiceFilter, q watch.Request) (<-chan *muster.Event, error) {
	seen := r.Seen(ctx)
	if _, err := seen.view().serviceMatcher(f); err != nil {
		return nil, err
	}
	matches := func(v View) func(*muster.Service) bool {
		m, err := v.serviceMatcher(f)
		if err != nil {
			return func(*muster.Service) bool { return false }
		}
		return m
	}
	return r.Hub.Serve(ctx, watch.Spec{
		Match: seen.matched(func(c *muster.Change) (bool, bool) { return matchService(c, matches(r.View())) }),
		Snapshot: seen.snapshot(func(v View) []walk {
			return []walk{v.presentServices(matches(v))}
		}),
	}, q)
}

// WatchHealth follows the changes of health that match: an instance's or a
// node's status, and the cluster's conditions. A filter by instance also
// delivers the changes of its node.
func (r *Registry) WatchHealth(ctx context.Context, f *muster.HealthFilter, q watch.Request) (<-chan *muster.Event, error) {
	seen := r.Seen(ctx)
	h, err := seen.health(f)
	if err != nil {
		return nil, err
	}
	return r.Hub.Serve(ctx, watch.Spec{Match: seen.matched(h.match), Snapshot: seen.snapshot(h.present)}, q)
}

// matched leaves out of what match delivers what the caller does not see.
func (s Seen) matched(match func(*muster.Change) (bool, bool)) func(*muster.Change) (bool, bool) {
	if s.sight.all() {
		return match
	}
	return func(c *muster.Change) (bool, bool) {
		if !s.sight.change(s.r.View(), c) {
			return false, false
		}
		return match(c)
	}
}

// goneNode is the uid that a filter gets whose node is no longer there: nothing is on it.
const goneNode muster.NodeUID = "gone"

// walk pulls the present state as changes, one at a time. It is a plain
// function over an immutable snapshot, so that one who stops pulling leaves
// nothing behind.
type walk func() (*muster.Change, bool)

// snapshot makes the present state that a subscription begins with.
func (s Seen) snapshot(walks func(View) []walk) func() (muster.Position, func() (*muster.Change, bool)) {
	return func() (muster.Position, func() (*muster.Change, bool)) {
		v := s.view()
		rest := walks(v)
		return v.Head(), func() (*muster.Change, bool) {
			for len(rest) > 0 {
				if c, ok := rest[0](); ok {
					return c, true
				}
				rest = rest[1:]
			}
			return nil, false
		}
	}
}

func (v View) presentNodes(keep func(*muster.Node) bool) walk {
	it := v.iterator(tableNode, byName)
	return func() (*muster.Change, bool) {
		for object := it.Next(); object != nil; object = it.Next() {
			if n := object.(*muster.Node); n.Live() && v.sight.node(n) && keep(n) {
				return &muster.Change{
					Revision: n.Revision, At: v.meta().at, Kind: muster.KindNode, ObjectID: string(n.UID), Node: n,
					Reason: n.StatusReason, PreviousStatus: string(n.Status), Status: string(n.Status),
				}, true
			}
		}
		return nil, false
	}
}

func (v View) presentConditions(wanted bool) walk {
	it := v.iterator(tableCondition, byID)
	return func() (*muster.Change, bool) {
		for object := it.Next(); wanted && object != nil; object = it.Next() {
			if c := object.(*muster.Condition); c.Status == muster.Holds {
				return &muster.Change{
					Revision: c.Revision, At: v.meta().at, Kind: muster.KindCluster, ObjectID: string(c.Name), Condition: c,
					Reason: c.Reason, PreviousStatus: string(c.Status), Status: string(c.Status),
				}, true
			}
		}
		return nil, false
	}
}

func (v View) presentServices(keep func(*muster.Service) bool) walk {
	it := v.iterator(tableService, byID)
	return func() (*muster.Change, bool) {
		for object := it.Next(); object != nil; object = it.Next() {
			if s := object.(*muster.Service); v.seesService(s) && keep(s) {
				return &muster.Change{
					Revision: s.Revision, At: v.meta().at, Kind: muster.KindService, ObjectID: string(s.ID), Service: s,
					Reason: s.StatusReason, PreviousStatus: string(s.Status), Status: string(s.Status),
				}, true
			}
		}
		return nil, false
	}
}

func (v View) presentInstances(keep func(*muster.Instance) bool) walk {
	it := v.iterator(tableInstance, byID)
	return func() (*muster.Change, bool) {
		for object := it.Next(); object != nil; object = it.Next() {
			if i := object.(*muster.Instance); v.sight.instance(v, i) && keep(i) {
				return &muster.Change{
					Revision: i.Revision, At: v.meta().at, Kind: muster.KindInstance, ObjectID: string(i.ID), Instance: i,
					Reason: i.StatusReason, PreviousStatus: string(i.Status), Status: string(i.Status),
				}, true
			}
		}
		return nil, false
	}
}
