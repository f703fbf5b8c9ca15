package registry

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

// Feed publishes the entries of this cluster. It must not block.
type Feed interface {
	// Keep has exactly these entries published from now on. One that leaves is removed at once.
	Keep(entries []FeedEntry)
	// Verify compares what should be there with what is, and puts it right with repair.
	Verify(ctx context.Context, repair bool) ([]muster.FeedFinding, error)
	// CheckTTL refuses a time to live that is longer than the feed keeps anything, and names the field.
	CheckTTL(field string, ttl *time.Duration) error
	// Flaw is what is not as it should be although the feed can be reached, and since when; empty: nothing.
	Flaw() (reason string, since time.Time)
}

// FeedEntry is an own entry as it is to be published.
type FeedEntry struct {
	*muster.Registration
	// Refresh says that it may be refreshed: its node was heard of in this life of the
	// server, or the brake holds.
	Refresh bool
}

// Foreign is news of an entry that somebody else writes into the feed.
type Foreign struct {
	Subject string
	Entry   *muster.Registration // nil: it is gone
	Origin  string
	Reason  string // why it is gone
}

// feedState is how the feed is, as far as this server knows. It is not part of the state.
type feedState struct {
	mu       sync.Mutex
	complete bool
	asOf     time.Time
	reason   string
	since    time.Time
}

// FeedSynced says that what others wrote is known up to now.
func (r *Registry) FeedSynced() {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	r.feed.complete, r.feed.asOf, r.feed.reason = true, r.opts.Now(), ""
}

// FeedLost says that the feed cannot be reached, and why.
func (r *Registry) FeedLost(reason string) {
	r.feed.mu.Lock()
	defer r.feed.mu.Unlock()
	if r.feed.complete || r.feed.since.IsZero() {
		r.feed.since, r.feed.asOf = r.opts.Now(), r.opts.Now()
	}
	r.feed.complete, r.feed.reason = false, reason
}

func (f *feedState) status(now time.Time) (complete bool, asOf time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.complete {
		return true, now
	}
	return false, f.asOf
}

// feedPatience is how long the feed may be out of reach before that is a condition: at a
// start, and while a server of it restarts, it is for a moment.
const feedPatience = 5 * time.Second

// lost is why the feed has been out of reach for a while, and since when; empty: it has not.
func (f *feedState) lost(now time.Time) (reason string, since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) < feedPatience {
		return "", f.since
	}
	return f.reason, f.since
}

// TakeForeign brings what others wrote into the feed into the state, in one commit. A
// refresh that changes nothing makes no change.
func (r *Registry) TakeForeign(ctx context.Context, news []Foreign) error {
	return r.system(ctx, func(v View, w *Writes) error {
		for _, n := range news {
			r.takeForeign(v, w, n)
		}
		return nil
	})
}

func (r *Registry) takeForeign(v View, w *Writes, n Foreign) {
	key := muster.ForeignEntryKey(n.Subject)
	before := v.Entry(key)
	if n.Entry == nil {
		if before != nil {
			w.ForgetEntry(before.Clone(), n.Reason)
		}
		return
	}
	if before != nil && sameRegistration(&before.Registration, n.Entry) && before.Origin == n.Origin {
		return
	}
	w.Entry(&muster.Entry{
		Key: key, Registration: *n.Entry, Origin: n.Origin, Subject: n.Subject, Owners: []string{},
		Status: muster.EntryRegistered, RegisteredAt: stamp(r.opts.Now()),
	}, "registered by others")
}

// ForeignSubjects are the subjects of all entries that others wrote, sorted: what a
// resync compares with.
func (r *Registry) ForeignSubjects() []string {
	var subjects []string
	for e := range r.View().Entries() {
		if !e.Own {
			subjects = append(subjects, e.Subject)
		}
	}
	slices.Sort(subjects)
	return subjects
}

func sameRegistration(a, b *muster.Registration) bool {
	return a.Cluster == b.Cluster && a.Protocol == b.Protocol && a.Service == b.Service && a.Address == b.Address &&
		equalPointees(a.Port, b.Port) && a.Priority == b.Priority && len(a.Annotations) == len(b.Annotations) && a.Annotations.Matches(b.Annotations) &&
		(a.TTL == b.TTL || a.TTL != nil && b.TTL != nil && *a.TTL == *b.TTL)
}

// VerifyFeed compares what this cluster should have in the discovery feed with what is
// there, and with repair puts it right. CONFLICT: nothing is published.
func (r *Registry) VerifyFeed(ctx context.Context, repair bool) ([]muster.FeedFinding, error) {
	if r.Feed == nil {
		return nil, muster.Errorf(muster.Conflict, "this server publishes nothing")
	}
	return r.Feed.Verify(ctx, repair)
}
