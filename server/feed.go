package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// FeedOptions are the settings of the discovery feed. The zero value runs a NATS server in
// this process, which nobody else reaches.
type FeedOptions struct {
	Publish     string        // how entries are published: jetstream, nats (best effort) or noop (not at all); jetstream
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
	switch o.Publish {
	case "", string(registration.JetStream), string(registration.Plain), string(registration.Noop):
	default:
		return muster.InvalidField("registration-publish", "%.80q is none; use jetstream, nats or noop", o.Publish)
	}
	if o.URL != "" && o.Context != "" {
		return muster.InvalidField("nats-context", "a URL is given too; give one of them")
	}
	if o.Listen != "" && (o.URL != "" || o.Context != "") {
		return muster.InvalidField("nats-listen", "this process has no NATS server of its own when it uses another one; leave it out")
	}
	stream := o.stream(nil)
	return stream.Validate()
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

func (o *FeedOptions) stream(log *slog.Logger) registration.StreamOptions {
	return registration.StreamOptions{Name: o.Stream, Replicas: o.Replicas, MaxAge: o.MaxAge, Logger: log}
}

// discovery publishes the cluster's entries and follows those of others.
type discovery struct {
	log      *slog.Logger
	registry *registry.Registry
	origin   string
	kind     registration.Kind

	embedded *registration.Embedded // nil: another server is used, or none
	conn     *registration.Conn     // nil: nothing is published
	stream   *registration.Stream
	keeper   *registration.Keeper
	mirror   *registration.Mirror
	foreign  *foreign

	mu   sync.Mutex
	kept map[string]*muster.Registration // by subject: what the keeper was told
}

// openDiscovery connects the feed. What cannot be reached now is tried for ever; only
// settings that can never work are errors.
func (s *Server) openDiscovery(ctx context.Context, origin string) error {
	o := s.options.Feed
	d := s.discovery
	d.log, d.origin, d.kind = s.log, origin, registration.Kind(o.Publish)
	if d.kind == "" {
		d.kind = registration.JetStream
	}
	if d.kind == registration.Noop {
		d.keeper = registration.NewKeeper(registration.NewNoop(), registration.KeeperOptions{Origin: origin, Logger: s.log})
		return nil
	}
	connect := registration.ConnectOptions{URL: o.URL, Context: o.Context, Credentials: o.Credentials, OnChange: d.connection}
	if o.URL == "" && o.Context == "" {
		token, err := o.token()
		if err != nil {
			return err
		}
		d.embedded, err = registration.OpenEmbedded(ctx, registration.EmbeddedOptions{
			Dir: filepath.Join(s.options.DataDir, "nats"), Listen: o.Listen, Token: token, Logger: s.log,
		})
		if err != nil {
			return fmt.Errorf("start the NATS server of this process: %w", err)
		}
		connect.Embedded = d.embedded
	}
	var err error
	if d.conn, err = registration.Connect(connect); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	d.assemble(o)
	return nil
}

func (d *discovery) assemble(o FeedOptions) {
	settings := o.stream(d.log)
	if d.embedded != nil {
		settings.Heal = d.embedded.Heal
	}
	settings.OnState = func(state registration.State) {
		if state.Up {
			d.keeper.Wake()
		}
	}
	d.stream = registration.NewStream(d.conn, settings)
	publisher := registration.NewJetStream(d.stream, d.origin)
	if d.kind == registration.Plain {
		publisher = registration.NewPlain(d.conn)
	}
	d.keeper = registration.NewKeeper(publisher, registration.KeeperOptions{Origin: d.origin, MaxAge: d.stream.MaxAge, Logger: d.log})
	d.foreign = &foreign{d: d, news: map[string]registry.Foreign{}, seen: map[string]bool{}, due: make(chan struct{}, 1)}
	d.mirror = registration.NewMirror(d.stream, d.foreign, registration.MirrorOptions{Logger: d.log})
}

// connection notes that the NATS server was lost, or is there again.
func (d *discovery) connection(err error) {
	if err != nil {
		d.registry.FeedLost("the NATS server cannot be reached: " + err.Error())
		return
	}
	d.keeper.Wake()
	d.stream.Kick()
}

// Keep has exactly these entries published. One that may not be refreshed, and that was not
// published in this life of the server, is left to run out by itself.
func (d *discovery) Keep(entries []registry.FeedEntry) {
	if d.keeper == nil {
		return // it is not connected yet: the gate hands them over again
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	wanted := map[string]*muster.Registration{}
	for _, e := range entries {
		subject := registration.Subject(e.Registration)
		if _, before := d.kept[subject]; e.Refresh || before {
			wanted[subject] = e.Registration
		}
	}
	d.kept = wanted
	d.keeper.Replace(wanted)
}

// run works until ctx ends.
func (d *discovery) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	work := func(run func(context.Context) error) {
		group.Go(func() error {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	work(d.keeper.Run)
	if d.conn == nil {
		d.registry.FeedSynced()
		return group.Wait()
	}
	work(d.stream.Run)
	work(d.mirror.Run)
	work(d.foreign.run)
	return group.Wait()
}

func (d *discovery) close() (err error) {
	if d.conn != nil {
		d.conn.Close()
	}
	if d.embedded != nil {
		err = d.embedded.Close()
	}
	return err
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
}

// Put takes an entry.
func (f *foreign) Put(m registration.Message) {
	f.d.keeper.Observe(m)
	if m.Origin == f.d.origin || m.Entry == nil {
		return
	}
	f.tell(registry.Foreign{Subject: m.Subject, Entry: m.Entry, Origin: m.Origin}, true)
}

// Gone takes the end of one.
func (f *foreign) Gone(gone registration.Departure) {
	f.d.keeper.Lost(gone)
	f.tell(registry.Foreign{Subject: gone.Subject, Reason: string(gone.Reason)}, false)
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
	if settle && len(f.news) == 0 {
		f.synced, f.begun = false, true
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

// Verify compares what this cluster should have in the feed with what is there; with
// repair it is put right. CONFLICT: nothing is published.
func (d *discovery) Verify(ctx context.Context, repair bool) ([]muster.FeedFinding, error) {
	if d.conn == nil || d.kind != registration.JetStream {
		return nil, muster.Errorf(muster.Conflict, "this server publishes nothing that could be verified: see --registration-publish")
	}
	found, err := d.keeper.Verify(ctx, d.stream, repair)
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
