package store

import (
	"time"

	"github.com/muster-cloud/muster"
)

// Every time is stored in UTC: as text, times of one zone sort, and what is loaded
// is what was written. Objects are shared, so it is copies that are changed.

func mapped[T any](rows []*T, f func(*T) *T) []*T {
	out := make([]*T, len(rows))
	for i, row := range rows {
		out[i] = f(row)
	}
	return out
}

func nodeInUTC(n *muster.Node) *muster.Node {
	if n == nil {
		return nil
	}
	c := *n
	c.RegisteredAt, c.LastSeen, c.StatusSince = c.RegisteredAt.UTC(), c.LastSeen.UTC(), c.StatusSince.UTC()
	return &c
}

func instanceInUTC(i *muster.Instance) *muster.Instance {
	if i == nil {
		return nil
	}
	c := *i
	for _, at := range []**time.Time{&c.StartedAt, &c.EndedAt, &c.TerminatedAt, &c.QueueDeadline, &c.DrainUntil} {
		if *at != nil {
			*at = new((*at).UTC())
		}
	}
	c.CreatedAt = c.CreatedAt.UTC()
	return &c
}

func serviceInUTC(o *muster.Service) *muster.Service {
	if o == nil {
		return nil
	}
	c := *o
	for _, at := range []**time.Time{&c.StartedAt, &c.EndedAt, &c.RemovedAt, &c.DrainUntil} {
		if *at != nil {
			*at = new((*at).UTC())
		}
	}
	c.CreatedAt = c.CreatedAt.UTC()
	return &c
}

func registeredInUTC(e *muster.Entry) *muster.Entry {
	if e == nil {
		return nil
	}
	c := *e
	c.RegisteredAt = c.RegisteredAt.UTC()
	return &c
}

func conditionInUTC(o *muster.Condition) *muster.Condition {
	if o == nil {
		return nil
	}
	c := *o
	c.Since = c.Since.UTC()
	if c.Until != nil {
		c.Until = new(c.Until.UTC())
	}
	return &c
}

func imageInUTC(i *muster.Image) *muster.Image {
	if i == nil {
		return nil
	}
	c := *i
	c.ImportedAt = c.ImportedAt.UTC()
	return &c
}

func requestInUTC(r *muster.Request) *muster.Request {
	c := *r
	c.At = c.At.UTC()
	return &c
}

func keyInUTC(k *muster.AccessKey) *muster.AccessKey {
	if k == nil {
		return nil
	}
	c := *k
	for _, at := range []**time.Time{&c.FormerUntil, &c.ExpiresAt, &c.RevokedAt, &c.LastUsedAt} {
		if *at != nil {
			*at = new((*at).UTC())
		}
	}
	c.CreatedAt = c.CreatedAt.UTC()
	return &c
}

func tokenInUTC(t *muster.JoinToken) *muster.JoinToken {
	if t == nil {
		return nil
	}
	c := *t
	c.CreatedAt, c.ExpiresAt = c.CreatedAt.UTC(), c.ExpiresAt.UTC()
	return &c
}

func entryInUTC(e *muster.AuditEntry) *muster.AuditEntry {
	c := *e
	c.At = c.At.UTC()
	return &c
}
