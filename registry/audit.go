package registry

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

// refusalKinds is how many kinds of refused attempts are told apart between two
// writes of the audit; what is more is counted together.
const refusalKinds = 1024

// refusalPause is how long refused attempts are collected before they are written.
const refusalPause = time.Second

// audited runs m and, when p says what it is doing, leaves an entry in the audit with
// the same commit: what was done and who did it cannot come apart.
func (r *Registry) audited(p muster.Principal, m Mutation) Mutation {
	if p.Action == "" {
		return m
	}
	return func(v View, w *Writes) error {
		if err := m(v, w); err != nil {
			return err
		}
		e := r.entry(p)
		e.Target, e.Outcome = cmp.Or(w.target(), e.Target), muster.AuditDone
		w.Audit(e)
		return nil
	}
}

func (r *Registry) entry(p muster.Principal) *muster.AuditEntry {
	return &muster.AuditEntry{
		At: stamp(r.opts.Now()), Key: p.Key, Name: p.Name, Addr: p.Addr, Action: p.Action, Count: 1,
		Target: muster.Printable(muster.Redacted(p.Target), muster.MaxNameBytes),
	}
}

// target names what is written: the ids of at most three objects.
func (w *Writes) target() string {
	var ids []string
	for _, s := range w.steps {
		switch {
		case s.node != nil:
			ids = append(ids, string(s.node.ID))
		case s.instance != nil:
			ids = append(ids, string(s.instance.ID))
		case s.image != nil:
			ids = append(ids, s.image.ObjectID())
		case s.service != nil:
			ids = append(ids, string(s.service.ID))
		case s.entry != nil:
			ids = append(ids, s.entry.ObjectID())
		case s.key != nil:
			ids = append(ids, string(s.key.ID))
		case s.token != nil:
			ids = append(ids, string(s.token.ID))
		case s.condition != nil:
			ids = append(ids, string(s.condition.Name))
		}
	}
	const most = 3
	if len(ids) > most {
		ids = append(ids[:most], "and "+strconv.Itoa(len(ids)-most)+" more")
	}
	return strings.Join(ids, " ")
}

// refusals are refused attempts that wait to be written.
type refusals struct {
	flushing sync.Mutex // held while some are written, so that who reads the audit then waits

	mu      sync.Mutex
	waiting map[refusal]*muster.AuditEntry
	order   []refusal
}

// refusal is what refused attempts have in common that are counted together.
type refusal struct {
	key                                      muster.KeyID
	name, addr, action, target, code, reason string
}

// AuditRefused records an attempt that was refused. It is written within a second or
// so; in a flood, attempts of the same kind are one entry with a count.
func (r *Registry) AuditRefused(p muster.Principal, err error) {
	e := r.entry(p)
	e.Outcome, e.Reason = string(muster.CodeOf(err)), muster.Printable(reasonOf(err), muster.MaxReasonBytes)
	kind := refusal{e.Key, e.Name, e.Addr, e.Action, e.Target, e.Outcome, e.Reason}
	r.refused.mu.Lock()
	defer r.refused.mu.Unlock()
	if before := r.refused.waiting[kind]; before != nil {
		before.Count++
		return
	}
	if len(r.refused.order) >= refusalKinds {
		kind = refusal{code: e.Outcome}
		if before := r.refused.waiting[kind]; before != nil {
			before.Count++
			return
		}
		e.Key, e.Name, e.Addr, e.Action, e.Target, e.Reason = "", "", "", "", "", "many attempts of many kinds at once"
	}
	if r.refused.waiting == nil {
		r.refused.waiting = map[refusal]*muster.AuditEntry{}
	}
	r.refused.waiting[kind] = e
	r.refused.order = append(r.refused.order, kind)
}

// reasonOf is what of an error is for people.
func reasonOf(err error) string {
	if muster.CodeOf(err) == muster.Internal {
		return "the server failed"
	}
	return muster.Redacted(err.Error())
}

func (f *refusals) take() []*muster.AuditEntry {
	f.mu.Lock()
	defer f.mu.Unlock()
	entries := make([]*muster.AuditEntry, 0, len(f.order))
	for _, kind := range f.order {
		entries = append(entries, f.waiting[kind])
	}
	f.waiting, f.order = nil, nil
	return entries
}

// writeRefusals writes refused attempts until ctx ends.
func (r *Registry) writeRefusals(ctx context.Context) error {
	tick := time.NewTicker(refusalPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			r.flushRefusals(ctx)
		}
	}
}

// flushRefusals writes those that wait. A caller who leaves does not take them along.
func (r *Registry) flushRefusals(ctx context.Context) {
	r.refused.flushing.Lock()
	defer r.refused.flushing.Unlock()
	entries := r.refused.take()
	if len(entries) == 0 {
		return
	}
	err := r.system(context.WithoutCancel(ctx), record(entries))
	if err != nil {
		r.Logger.Warn("refused attempts are missing from the audit", "kinds", len(entries), "err", err)
	}
}

// flushLastRefusals is flushRefusals once the committer has stopped.
func (r *Registry) flushLastRefusals(ctx context.Context) {
	entries := r.refused.take()
	if len(entries) == 0 {
		return
	}
	last := call{actor: itself, mutation: record(entries), done: make(chan outcome, 1)}
	r.commits.commit(ctx, []call{last})
	if o := <-last.done; o.err != nil {
		r.Logger.Warn("refused attempts are missing from the audit", "kinds", len(entries), "err", o.err)
	}
}

func record(entries []*muster.AuditEntry) Mutation {
	return func(_ View, w *Writes) error {
		for _, e := range entries {
			w.Audit(e)
		}
		return nil
	}
}

// Audit returns a page of the audit, newest first.
func (r *Registry) Audit(ctx context.Context, f *muster.AuditFilter, page muster.PageInput) (*muster.AuditConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	before := int64(0)
	if after != "" {
		if before, err = strconv.ParseInt(after, 10, 64); err != nil || before < 1 {
			return nil, muster.InvalidField("after", "it is not an edge's cursor; use one that this list gave, as it came")
		}
	}
	r.flushRefusals(ctx)
	entries, err := r.History.AuditBefore(ctx, f, before, limit+1)
	if err != nil {
		return nil, err
	}
	info := &muster.PageInfo{HasPreviousPage: after != "", HasNextPage: len(entries) > limit}
	c := &muster.AuditConnection{Edges: []*muster.AuditEdge{}, PageInfo: info}
	for _, e := range entries[:min(limit, len(entries))] {
		c.Edges = append(c.Edges, &muster.AuditEdge{Cursor: edge(strconv.FormatInt(e.ID, 10)), Node: e})
	}
	if n := len(c.Edges); n > 0 {
		info.StartCursor, info.EndCursor = &c.Edges[0].Cursor, &c.Edges[n-1].Cursor
	}
	return c, nil
}
