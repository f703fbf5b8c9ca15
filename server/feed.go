package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registration"
	"github.com/muster-cloud/muster/registry"
)

// FeedOptions are the settings of the discovery feed. The zero value publishes nothing;
// Publish alone runs a NATS server in this process, which nobody else reaches.
type FeedOptions struct {
	Publish     string        // how entries are published: jetstream, nats (best effort) or noop (not at all); noop
	Listen      string        // address at which others reach the NATS server of this process; none
	TokenFile   string        // a file with what they present then; nobody else may read it
	URL         string        // of an existing NATS server or cluster, instead of one's own; none
	Context     string        // a context of the nats command that says which, and as whom; none
	Credentials string        // a file with a user's JWT and seed; none
	Stream      string        // its name; registration.DefaultStream
	Replicas    int           // 1 to 5; 1
	MaxAge      time.Duration // how long an entry without a TTL lives; registration.DefaultMaxAge
}

// Validate refuses settings that no feed can have.
func (o *FeedOptions) Validate() error {
	feed := o.feed("")
	feed.Origin, feed.Embedded.Token = "x", "x" // they are known later
	return feed.Validate()
}

// feed are the settings as the feed itself has them.
func (o *FeedOptions) feed(dir string) registration.FeedOptions {
	kind := registration.Kind(o.Publish)
	if kind == "" {
		kind = registration.Noop
	}
	return registration.FeedOptions{
		Kind:     kind,
		Embedded: registration.EmbeddedOptions{Dir: dir, Listen: o.Listen},
		Connect:  registration.ConnectOptions{URL: o.URL, Context: o.Context, Credentials: o.Credentials},
		Stream:   registration.StreamOptions{Name: o.Stream, Replicas: o.Replicas, MaxAge: o.MaxAge},
	}
}

// token reads what others present to the NATS server of this process.
func (o *FeedOptions) token() (string, error) {
	if o.TokenFile == "" {
		return "", nil
	}
	text, err := keyfile.Read(o.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--nats-token-file: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// discovery publishes the cluster's entries and follows those of others.
type discovery struct {
	registry *registry.Registry
	origin   string
	feed     *registration.Feed // nil: not opened yet
	foreign  *foreign

	mu   sync.Mutex
	kept map[string]*muster.Registration // by subject: what the feed was told
}

// open connects the feed. What cannot be reached now is tried for ever; only settings that
// can never work are errors.
func (d *discovery) open(ctx context.Context, r *registry.Registry, o Options) (err error) {
	d.registry, d.origin = r, r.ServerInfo().ClusterUID
	d.foreign = &foreign{d: d, news: map[string]registry.Foreign{}, seen: map[string]bool{}, due: make(chan struct{}, 1)}
	settings := o.Feed.feed(filepath.Join(o.DataDir, "nats"))
	settings.Origin, settings.Follower, settings.OnState, settings.Logger = d.origin, d.foreign, d.turn, o.Logger
	if settings.Embedded.Token, err = o.Feed.token(); err != nil {
		return err
	}
	feed, err := registration.OpenFeed(ctx, settings)
	if err != nil {
		return fmt.Errorf("open the discovery feed: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.feed = feed
	return nil
}

// turn notes that the feed can be reached, or no longer. One that was followed all along says
// so no second time.
func (d *discovery) turn(state registration.State) {
	switch {
	case !state.Up:
		d.registry.FeedLost("the discovery feed cannot be reached: " + state.Reason)
	case d.foreign.isCurrent():
		d.registry.FeedSynced()
	}
}

// Keep has exactly these entries published. One that may not be refreshed, and that was not
// published in this life of the server, is left to run out by itself.
func (d *discovery) Keep(entries []registry.FeedEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.feed == nil {
		return // it is not open yet: the gate hands them over again
	}
	wanted := map[string]*muster.Registration{}
	var spared []string
	for _, e := range entries {
		subject := registration.Subject(e.Registration)
		if _, before := d.kept[subject]; e.Refresh || before {
			wanted[subject] = e.Registration
		} else {
			spared = append(spared, subject)
		}
	}
	d.kept = wanted
	d.feed.Replace(wanted, spared...)
}

// run works until ctx ends.
func (d *discovery) run(ctx context.Context) error {
	if d.kind() == registration.Noop {
		d.registry.FeedSynced()
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, work := range []func(context.Context) error{d.feed.Run, d.foreign.run} {
		group.Go(func() error {
			if err := work(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	return group.Wait()
}

func (d *discovery) kind() registration.Kind { return d.feed.Kind() }

func (d *discovery) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.feed == nil {
		return nil
	}
	return d.feed.Close()
}

// foreignBatch is how many news of others' entries are committed together.
const foreignBatch = 500

// foreign takes what others write into the feed to the registry: the newest of each subject,
// some at a time.
type foreign struct {
	d   *discovery
	due chan struct{}

	mu     sync.Mutex
	news   map[string]registry.Foreign
	seen   map[string]bool // subjects of others that are there
	synced bool            // all that is there was told, and is to be settled
	begun  bool            // it was settled once in this life of the server
	follow bool            // it was settled, and the stream has been followed since
}

// Put takes an entry. Where it is ours, that of others is gone.
func (f *foreign) Put(m registration.Message) {
	if m.Entry == nil {
		return
	}
	if m.Origin == f.d.origin {
		if f.has(m.Subject) {
			f.tell(registry.Foreign{Subject: m.Subject, Reason: "this cluster has written over it"}, false)
		}
		return
	}
	f.tell(registry.Foreign{Subject: m.Subject, Entry: m.Entry, Origin: m.Origin}, true)
}

// Gone takes the end of one.
func (f *foreign) Gone(gone registration.Departure) {
	f.tell(registry.Foreign{Subject: gone.Subject, Reason: string(gone.Reason)}, false)
}

func (f *foreign) has(subject string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[subject]
}

func (f *foreign) isCurrent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.follow
}

func (f *foreign) tell(n registry.Foreign, there bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.news[n.Subject] = n
	if there {
		f.seen[n.Subject] = true
	} else {
		delete(f.seen, n.Subject)
	}
	f.raise()
}

// Synced notes that all that is in the stream has been told.
func (f *foreign) Synced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced = true
	f.raise()
}

// Lost notes that the stream cannot be followed.
func (f *foreign) Lost(err error) {
	f.mu.Lock()
	f.synced, f.follow = false, false
	f.mu.Unlock()
	f.d.registry.FeedLost("the discovery feed cannot be followed: " + err.Error())
}

func (f *foreign) raise() {
	select {
	case f.due <- struct{}{}:
	default:
	}
}

func (f *foreign) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.due:
		}
		for f.step(ctx) {
		}
	}
}

// step commits some of the news, and reports whether there are more.
func (f *foreign) step(ctx context.Context) bool {
	f.mu.Lock()
	var batch []registry.Foreign
	for subject, n := range f.news {
		if len(batch) == foreignBatch {
			break
		}
		batch = append(batch, n)
		delete(f.news, subject)
	}
	settle := len(f.news) == 0 && f.synced
	if settle && !f.begun {
		batch = append(batch, f.vanishedLocked()...)
	}
	f.mu.Unlock()
	if len(batch) > 0 {
		if err := f.d.registry.TakeForeign(ctx, batch); err != nil {
			f.giveBack(batch)
			return f.pause(ctx)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if settle && f.synced && len(f.news) == 0 {
		f.synced, f.begun, f.follow = false, true, true
		f.d.registry.FeedSynced()
	}
	return len(f.news) > 0
}

// vanishedLocked are those that went while the server was away.
func (f *foreign) vanishedLocked() (gone []registry.Foreign) {
	for _, subject := range f.d.registry.ForeignSubjects() {
		if !f.seen[subject] {
			gone = append(gone, registry.Foreign{Subject: subject, Reason: "it went while the server was away"})
		}
	}
	return gone
}

// giveBack keeps what was not taken, where nothing newer came.
func (f *foreign) giveBack(batch []registry.Foreign) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range batch {
		if _, newer := f.news[n.Subject]; !newer {
			f.news[n.Subject] = n
		}
	}
}

func (f *foreign) pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Second):
		return true
	}
}

// CheckTTL refuses what the stream would cut short and say nothing. Where nothing is published, nothing is.
func (d *discovery) CheckTTL(field string, ttl *time.Duration) error {
	d.mu.Lock()
	feed := d.feed
	d.mu.Unlock()
	if feed == nil || feed.Kind() != registration.JetStream {
		return nil
	}
	return registration.CheckTTL(field, ttl, feed.MaxAge())
}

// Flaw is what is not as it should be of the feed, and since when.
func (d *discovery) Flaw() (string, time.Time) {
	d.mu.Lock()
	feed := d.feed
	d.mu.Unlock()
	if feed == nil {
		return "", time.Time{}
	}
	return feed.Flaw()
}

// Verify compares what this cluster should have in the feed with what is there; with
// repair it is put right. CONFLICT: nothing is published.
func (d *discovery) Verify(ctx context.Context, repair bool) ([]muster.FeedFinding, error) {
	if d.kind() != registration.JetStream {
		return nil, muster.Errorf(muster.Conflict, "this server publishes nothing that could be verified: see --registration-publish")
	}
	found, err := d.feed.Verify(ctx, repair)
	if errors.Is(err, registration.ErrUnavailable) {
		return nil, muster.Errorf(muster.Unavailable, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	findings := make([]muster.FeedFinding, len(found))
	for i, f := range found {
		findings[i] = muster.FeedFinding{Subject: f.Subject, Damage: string(f.Damage)}
	}
	return findings, nil
}
