package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster"
)

// The defaults of StreamOptions, and the most replicas.
const (
	DefaultStream     = "REGISTRATION"
	DefaultMaxAge     = 24 * time.Hour
	DefaultCheckEvery = 10 * time.Second
	MaxReplicas       = 5
)

// deletionPause is how long a server may take to delete a stream.
const deletionPause = time.Second

// StreamOptions says which stream holds the feed, and how. Of a stream that is there
// already, the age and the replicas are changed only when they are given.
type StreamOptions struct {
	Name       string        // "": DefaultStream
	MaxAge     time.Duration // how long an entry without a TTL lives, and the marker of one that was removed; 0: DefaultMaxAge
	Replicas   int           // 1 to MaxReplicas; 0: 1
	CheckEvery time.Duration // 0: DefaultCheckEvery
	// Heal is called before each check, to mend the server below; nil: nothing is.
	Heal func(context.Context) error
	// OnState is called with each change of the state, one at a time; it must not block.
	OnState func(State)
	Logger  *slog.Logger // nil: slog.Default()
}

// Validate refuses what no stream can be.
func (o *StreamOptions) Validate() error {
	switch {
	case o.Replicas < 0 || o.Replicas > MaxReplicas:
		return muster.InvalidField("registration-replicas", "%d is not between 1 and %d", o.Replicas, MaxReplicas)
	case o.MaxAge != 0 && o.MaxAge < muster.MinRegistrationTTL:
		return muster.InvalidField("registration-max-age", "%s is below %s", o.MaxAge, muster.MinRegistrationTTL)
	case strings.ContainsAny(o.Name, " \t\r\n.*>/\\"):
		return muster.InvalidField("registration-stream", "%.80q is no name of a stream; use letters, digits, hyphens and underscores", o.Name)
	}
	return nil
}

// State is whether the feed can be written to and read.
type State struct {
	Up     bool
	Reason string    // why it is not up
	Flaw   string    // what is not as it should be although it is up; "": all is
	Since  time.Time // when it became so
}

// Stream keeps the feed's stream as it must be.
type Stream struct {
	conn *Conn
	opts StreamOptions
	log  *slog.Logger
	kick chan struct{}

	mu     sync.Mutex
	state  State
	maxAge time.Duration
	there  bool // it was seen
}

// NewStream makes a Stream; Run does the work.
func NewStream(conn *Conn, opts StreamOptions) *Stream {
	opts.Name = cmp.Or(opts.Name, DefaultStream)
	opts.CheckEvery = cmp.Or(opts.CheckEvery, DefaultCheckEvery)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Stream{
		conn: conn, opts: opts, log: opts.Logger, kick: make(chan struct{}, 1),
		state: State{Reason: "not connected yet", Since: time.Now()}, maxAge: cmp.Or(opts.MaxAge, DefaultMaxAge),
	}
}

// Run checks the stream, and creates or repairs it, at once, on the interval and when
// kicked, until the context ends.
func (s *Stream) Run(ctx context.Context) error {
	tick := time.NewTicker(s.opts.CheckEvery)
	defer tick.Stop()
	for {
		repairs, err := s.Ensure(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if len(repairs) > 0 {
			level := slog.LevelWarn
			if slices.Equal(repairs, []string{"created"}) {
				level = slog.LevelInfo
			}
			s.log.Log(ctx, level, "the stream of the discovery feed was repaired", "stream", s.opts.Name, "repairs", repairs)
		}
		s.turn(err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-s.kick:
		}
	}
}

// Kick has Run check soon.
func (s *Stream) Kick() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// State returns what the last check found.
func (s *Stream) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// MaxAge is how long the stream keeps an entry without a TTL.
func (s *Stream) MaxAge() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.maxAge
}

// turn takes what a check found into the state.
func (s *Stream) turn(err error) {
	now := State{Since: time.Now()}
	switch flawed := errors.Is(err, errFlawed); {
	case err == nil, flawed:
		now.Up = true
		if flawed {
			now.Flaw = err.Error()
		}
	default:
		now.Reason = err.Error()
	}
	s.mu.Lock()
	same := s.state.Up == now.Up && s.state.Reason == now.Reason && s.state.Flaw == now.Flaw
	if !s.state.Up && !now.Up && !same {
		now.Since = s.state.Since // another reason, the same outage
	}
	if !same {
		s.state = now
	}
	s.mu.Unlock()
	switch {
	case same:
		return
	case now.Flaw != "":
		s.log.Warn("the discovery feed is up, and not as it should be", "stream", s.opts.Name, "err", err)
	case now.Up:
		s.log.Info("the discovery feed is up", "stream", s.opts.Name)
	default:
		s.log.Warn("the discovery feed is down", "stream", s.opts.Name, "err", err)
	}
	if s.opts.OnState != nil {
		s.opts.OnState(now)
	}
}

// errFlawed is the kind of what is not as it should be of a stream that can be used all the same.
var errFlawed = errors.New("the stream is not as it should be")

// Ensure creates the stream when it is not there, puts right what is not as it must be,
// and says what it changed.
func (s *Stream) Ensure(ctx context.Context) ([]string, error) {
	if s.opts.Heal != nil {
		if err := s.opts.Heal(ctx); err != nil {
			return nil, err
		}
	}
	s.conn.renew()
	ctx, done := s.conn.request(ctx, "")
	defer done()
	found, err := s.conn.JetStream().Stream(ctx, s.opts.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.create(ctx)
	}
	if err != nil {
		return nil, s.explain(ctx, err)
	}
	have := found.CachedInfo().Config
	want := s.wanted(have)
	s.learn(want.MaxAge)
	if err := unsuitable(want); err != nil {
		return nil, err
	}
	repairs, err := s.repair(ctx, have, want)
	if isShort(err) {
		// It works with the replicas that it has, if all else is as it must be.
		short := fmt.Errorf("%w: it has %d of %d replicas: %w", errFlawed, have.Replicas, want.Replicas, err)
		want.Replicas = have.Replicas
		if repairs, err = s.repair(ctx, have, want); err == nil {
			err = short
		}
	}
	return repairs, err
}

func (s *Stream) repair(ctx context.Context, have, want jetstream.StreamConfig) ([]string, error) {
	repairs := differences(have, want)
	if len(repairs) == 0 {
		return nil, nil
	}
	if _, err := s.conn.JetStream().UpdateStream(ctx, want); err != nil {
		return nil, fmt.Errorf("stream %s needs to be changed (%s): %w", s.opts.Name, strings.Join(repairs, ", "), s.explain(ctx, err))
	}
	return repairs, nil
}

// create makes the stream. One that was there until now is let go first: the server takes its
// name away before its files, and would build the new stream on them.
func (s *Stream) create(ctx context.Context) ([]string, error) {
	s.mu.Lock()
	was := s.there
	s.mu.Unlock()
	if was {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(deletionPause):
		}
	}
	config := s.wanted(jetstream.StreamConfig{Name: s.opts.Name, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage})
	if _, err := s.conn.JetStream().CreateStream(ctx, config); err != nil {
		return nil, s.explain(ctx, err)
	}
	s.learn(config.MaxAge)
	return []string{"created"}, nil
}

func (s *Stream) learn(maxAge time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxAge = maxAge
	s.there = true
}

// wanted returns a configuration changed to what the feed needs; what it does not care
// for stays.
func (s *Stream) wanted(c jetstream.StreamConfig) jetstream.StreamConfig {
	c.Subjects = slices.Clone(c.Subjects)
	if all := Prefix + ".>"; !slices.Contains(c.Subjects, all) {
		c.Subjects = append(slices.DeleteFunc(c.Subjects, func(s string) bool { return strings.HasPrefix(s, Prefix+".") }), all)
	}
	c.MaxMsgsPerSubject = 1
	c.Discard = jetstream.DiscardOld
	c.AllowMsgTTL, c.AllowRollup, c.AllowDirect, c.DenyDelete = true, true, true, true
	c.MaxAge = cmp.Or(s.opts.MaxAge, c.MaxAge, DefaultMaxAge)
	c.SubjectDeleteMarkerTTL = c.MaxAge
	c.Replicas = cmp.Or(s.opts.Replicas, c.Replicas, 1)
	c.Duplicates = min(c.Duplicates, c.MaxAge)
	return c
}

// differences names what is not as it is wanted.
func differences(have, want jetstream.StreamConfig) []string {
	var names []string
	for _, d := range []struct {
		name string
		is   bool
	}{
		{"subjects", !slices.Equal(have.Subjects, want.Subjects)},
		{"max_msgs_per_subject", have.MaxMsgsPerSubject != want.MaxMsgsPerSubject},
		{"discard", have.Discard != want.Discard},
		{"allow_msg_ttl", have.AllowMsgTTL != want.AllowMsgTTL},
		{"allow_rollup_hdrs", have.AllowRollup != want.AllowRollup},
		{"allow_direct", have.AllowDirect != want.AllowDirect},
		{"deny_delete", have.DenyDelete != want.DenyDelete},
		{"max_age", have.MaxAge != want.MaxAge},
		{"subject_delete_marker_ttl", have.SubjectDeleteMarkerTTL != want.SubjectDeleteMarkerTTL},
		{"num_replicas", have.Replicas != want.Replicas},
	} {
		if d.is {
			names = append(names, d.name)
		}
	}
	return names
}

// unsuitable names what no change can put right.
func unsuitable(c jetstream.StreamConfig) error {
	if c.Retention != jetstream.LimitsPolicy {
		return fmt.Errorf("stream %s keeps messages by %s, not by limits; choose another stream, or remove it", c.Name, c.Retention)
	}
	return nil
}

// isShort tells whether a stream cannot have as many replicas as it should.
func isShort(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == errCodeNoPeers || api.ErrorCode == errCodeNoCluster)
}

// explain says what to do about an error of the server.
func (s *Stream) explain(ctx context.Context, err error) error {
	err = because(ctx, err)
	api, isAPI := errors.AsType[*jetstream.APIError](err)
	switch {
	case isAPI && api.ErrorCode == errCodeOverlap:
		other, _ := s.conn.JetStream().StreamNameBySubject(ctx, Prefix+".>")
		return fmt.Errorf("another stream, %s, has the feed's subjects; use it, or remove it: %w", other, err)
	case isAPI && api.ErrorCode == errCodeNoPeers:
		return fmt.Errorf("the NATS cluster has too few servers with JetStream that are up for %d replicas; start more, or lower registration-replicas: %w", s.opts.Replicas, err)
	case isAPI && api.ErrorCode == errCodeNoCluster:
		return fmt.Errorf("the NATS server is in no cluster, so that a stream has one replica; lower registration-replicas to 1: %w", err)
	case isAPI && api.ErrorCode == errCodeNoLeader:
		return fmt.Errorf("JetStream has no leader: more than half of the servers of the NATS cluster have to be up: %w", err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		s.conn.doubt() // the context may name another domain by now
		return fmt.Errorf("no JetStream answers: have it on for the server and the account, and look at jetstream_domain of nats-context: %w", err)
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		return s.conn.absent()
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the NATS server does not answer: %w", err)
	}
	return err
}
