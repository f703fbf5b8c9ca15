package registration

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
)

// FeedOptions says where the feed is and what is done with it. Without an address it is a server in
// this process.
type FeedOptions struct {
	Kind   Kind   // "": JetStream
	Origin string // the uid of our cluster; required for JetStream
	// Embedded is the server in this process, unless Connect has a URL or a context.
	Embedded EmbeddedOptions
	Connect  ConnectOptions // its Embedded and OnChange are set by the feed
	Stream   StreamOptions  // its Heal and OnState are set by the feed
	Mirror   MirrorOptions
	// Follower is told of the entries in the stream, ours among them; nil: nobody is.
	Follower Follower
	// OnState is called when the feed can be reached again, or no longer, one at a time; it must
	// not block.
	OnState func(State)
	Logger  *slog.Logger // nil: slog.Default()
}

// Validate refuses what cannot be a feed.
func (o *FeedOptions) Validate() error {
	switch o.Kind {
	case "", JetStream, Plain, Noop:
	default:
		return muster.InvalidField("registration", "%.80q is no destination; use jetstream, nats or noop", string(o.Kind))
	}
	if o.Origin == "" && (o.Kind == "" || o.Kind == JetStream) {
		// Without one, what others wrote would be taken for ours.
		return muster.InvalidField("origin", "it is empty; give the uid of the cluster")
	}
	if o.Connect.URL != "" && o.Connect.Context != "" {
		return muster.InvalidField("nats-url", "a context names a server too; leave one of them out")
	}
	if o.Embedded.Listen != "" && o.isElsewhere() {
		return muster.InvalidField("nats-listen", "the server is another one, at the URL or context; leave one of them out")
	}
	if o.Stream.Replicas > 1 && !o.isElsewhere() {
		return muster.InvalidField("registration-replicas", "the server in this process is alone, so that it is 1; name a cluster by nats-url or nats-context")
	}
	if err := o.Connect.Validate(); err != nil {
		return err
	}
	if err := o.Embedded.Validate(); err != nil {
		return err
	}
	return o.Stream.Validate()
}

func (o *FeedOptions) isElsewhere() bool { return o.Connect.URL != "" || o.Connect.Context != "" }

// Feed is the whole of it: a server or the connection to one, the stream, what is desired
// in it, and what it holds.
type Feed struct {
	*Keeper
	opts     FeedOptions
	log      *slog.Logger
	embedded *Embedded // nil: the server is elsewhere
	conn     *Conn     // nil: nothing is published

	mu     sync.Mutex
	stream *Stream // nil: no JetStream
	mirror *Mirror // nil: nobody follows
	state  State
}

// OpenFeed makes a Feed; Run does the work, and Close ends it. A server that cannot be reached, or
// whose disk is full, is no error: the feed is down until it can.
func OpenFeed(ctx context.Context, opts FeedOptions) (*Feed, error) {
	opts.Kind = cmp.Or(opts.Kind, JetStream)
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	f := &Feed{opts: opts, log: opts.Logger, state: State{Reason: "not connected yet", Since: time.Now()}}
	if opts.Kind == Noop {
		f.state = State{Up: true, Since: time.Now()}
		f.Keeper = NewKeeper(NewNoop(), KeeperOptions{Logger: f.log})
		return f, nil
	}
	if err := f.connect(ctx); err != nil {
		_ = f.Close()
		return nil, err
	}
	f.build()
	return f, nil
}

// connect starts the server in this process, if it is to be there, and connects.
func (f *Feed) connect(ctx context.Context) (err error) {
	to := f.opts.Connect
	to.OnChange = f.connection
	to.Logger = cmp.Or(to.Logger, f.log)
	if !f.opts.isElsewhere() {
		f.opts.Embedded.Logger = cmp.Or(f.opts.Embedded.Logger, f.log)
		if f.embedded, err = NewEmbedded(f.opts.Embedded); err != nil {
			return err
		}
		if err = f.embedded.Heal(ctx); err != nil && f.opts.Embedded.Listen != "" {
			return err // a port that is in use does not get free by waiting
		}
		if err != nil {
			f.log.Warn("the discovery feed's server does not start yet", "err", err)
		}
		to.Embedded = f.embedded
	}
	f.conn, err = Connect(to)
	return err
}

// build makes the parts that work on the connection.
func (f *Feed) build() {
	f.mu.Lock()
	defer f.mu.Unlock()
	keeper := KeeperOptions{Origin: f.opts.Origin, Logger: f.log}
	if f.opts.Kind == Plain {
		keeper.OnState = f.turn
		f.Keeper = NewKeeper(NewPlain(f.conn), keeper)
		return
	}
	stream := f.opts.Stream
	stream.Logger = cmp.Or(stream.Logger, f.log)
	stream.OnState = f.turn
	if f.embedded != nil {
		stream.Heal = f.embedded.Heal
	}
	f.stream = NewStream(f.conn, stream)
	keeper.MaxAge = f.stream.MaxAge
	keeper.OnState = func(s State) {
		if !s.Up {
			f.stream.Kick()
		}
	}
	f.Keeper = NewKeeper(NewJetStream(f.stream, f.opts.Origin), keeper)
	if f.opts.Follower != nil {
		mirror := f.opts.Mirror
		mirror.Logger = cmp.Or(mirror.Logger, f.log)
		f.mirror = NewMirror(f.stream, both{f.Keeper, f.opts.Follower}, mirror)
		f.mirror.keeper = f.Keeper
	}
}

// connection takes in what became of the connection.
func (f *Feed) connection(err error) {
	f.mu.Lock()
	stream, keeper := f.stream, f.Keeper
	f.mu.Unlock()
	switch {
	case stream != nil:
		stream.Kick()
	case keeper != nil && err == nil:
		keeper.Wake()
	}
	if f.opts.Kind == Plain {
		s := State{Up: err == nil, Since: time.Now()}
		if err != nil {
			s.Reason = err.Error()
		}
		f.turn(s)
	}
}

// turn takes in a new state, and has what waited for it tried at once.
func (f *Feed) turn(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state.Up == s.Up && f.state.Reason == s.Reason && f.state.Flaw == s.Flaw {
		return
	}
	f.state = s
	if s.Up && f.stream != nil {
		f.Wake()
	}
	if f.opts.OnState != nil {
		f.opts.OnState(s)
	}
}

// Run works until the context ends.
func (f *Feed) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return f.Keeper.Run(ctx) })
	if f.stream != nil {
		group.Go(func() error { return f.stream.Run(ctx) })
	}
	if f.mirror != nil {
		group.Go(func() error { return f.mirror.Run(ctx) })
	}
	return group.Wait()
}

// Close ends the connection, and the server if it is in this process. Call it when Run
// has returned.
func (f *Feed) Close() error {
	if f.conn != nil {
		f.conn.Close()
	}
	if f.embedded != nil {
		return f.embedded.Close()
	}
	return nil
}

// Kind is what is done with entries.
func (f *Feed) Kind() Kind { return f.opts.Kind }

// State is whether the feed can be reached.
func (f *Feed) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// Flaw is what is not as it should be of a feed that can be reached, and since when; empty: nothing.
func (f *Feed) Flaw() (string, time.Time) {
	if reason, since := f.Keeper.Flaw(); reason != "" {
		return reason, since
	}
	s := f.State()
	return s.Flaw, s.Since
}

// MaxAge is how long the feed keeps an entry without a TTL, and the longest TTL that it
// can keep.
func (f *Feed) MaxAge() time.Duration {
	if f.stream == nil {
		return cmp.Or(f.opts.Stream.MaxAge, DefaultMaxAge)
	}
	return f.stream.MaxAge()
}

// MirrorCounts is what was seen of the stream.
func (f *Feed) MirrorCounts() MirrorCounts {
	if f.mirror == nil {
		return MirrorCounts{}
	}
	return f.mirror.Counts()
}

// Addr is where the server in this process listens; "": it doesn't, or is elsewhere.
func (f *Feed) Addr() string {
	if f.embedded == nil {
		return ""
	}
	return f.embedded.Addr()
}

// Verify compares what is desired with what the stream holds of ours; see Keeper.Verify.
func (f *Feed) Verify(ctx context.Context, repair bool) ([]Finding, error) {
	if f.stream == nil {
		return nil, fmt.Errorf("%w: what is published to %q cannot be read back", ErrUnavailable, f.opts.Kind)
	}
	return f.Keeper.Verify(ctx, f.stream, repair)
}

// both tells the Keeper first, for what it learns is what the next message comes after.
type both struct {
	keeper *Keeper
	Follower
}

func (b both) Put(m Message) {
	b.keeper.Observe(m)
	b.Follower.Put(m)
}

func (b both) Gone(d Departure) {
	b.keeper.Lost(d)
	b.Follower.Gone(d)
}
