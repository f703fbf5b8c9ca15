package registration

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// DefaultMaxEntries is how many subjects a Mirror follows at most.
const DefaultMaxEntries = 100_000

// How long a Mirror waits after it lost the stream.
const (
	mirrorPause   = 100 * time.Millisecond
	mirrorLongest = 5 * time.Second
)

// Follower is told what a Mirror sees, one call at a time; they should return soon.
type Follower interface {
	// Put tells of an entry: new, refreshed or changed.
	Put(m Message)
	// Gone tells that a subject that Put told of has no entry any more.
	Gone(d Departure)
	// Synced tells that all that is in the stream has been told.
	Synced()
	// Lost tells that the stream cannot be followed for now. What was told stays as it is
	// until the next Synced, before which all that has changed meanwhile is told.
	Lost(err error)
}

// Departure is the end of an entry.
type Departure struct {
	Subject  string
	Reason   Reason
	Sequence uint64    // of the message that says so; 0: there is none
	At       time.Time // of that message, or when it was noticed
}

// MirrorOptions sets a Mirror; the zero value works.
type MirrorOptions struct {
	CheckEvery time.Duration // how often it compares itself with the stream; 0: DefaultCheckEvery
	MaxEntries int           // subjects beyond are counted and skipped; 0: DefaultMaxEntries
	Logger     *slog.Logger  // nil: slog.Default()
}

// MirrorCounts is what a Mirror has seen.
type MirrorCounts struct {
	Bad     int // messages that were no entry, or markers with an unknown reason
	Beyond  int // messages on subjects beyond MaxEntries
	Resyncs int // times that it read the stream from its beginning
	Entries int // subjects that have an entry now
}

// Mirror follows a stream and tells a Follower of its entries. It remembers the
// subjects, not what is on them.
type Mirror struct {
	stream *Stream
	follow Follower
	opts   MirrorOptions
	log    *slog.Logger
	name   string
	keeper *Keeper // of the same feed; nil: none

	// These belong to Run.
	known   map[string]sight
	round   int       // raised with each reading from the beginning
	created time.Time // of the stream that known is about

	mu     sync.Mutex
	counts MirrorCounts
}

// sight is the last message that was seen on a subject.
type sight struct {
	seq     uint64
	round   int
	entry   bool      // it was told by Put
	bad     bool      // it was no entry
	ours    bool      // it is the keeper's, and no marker
	expires time.Time // when the server removes it; zero: it doesn't
}

// NewMirror makes a Mirror; Run does the work.
func NewMirror(stream *Stream, follow Follower, opts MirrorOptions) *Mirror {
	opts.CheckEvery = cmp.Or(opts.CheckEvery, DefaultCheckEvery)
	opts.MaxEntries = cmp.Or(opts.MaxEntries, DefaultMaxEntries)
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Mirror{
		stream: stream, follow: follow, opts: opts, log: opts.Logger,
		name: "muster-mirror-" + rand.Text(), known: map[string]sight{},
	}
}

// Counts returns what it has seen so far.
func (m *Mirror) Counts() MirrorCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts
}

func (m *Mirror) count(change func(*MirrorCounts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.counts)
}

// Run follows the stream until the context ends. Whenever it loses it, it begins anew:
// only the difference is told.
func (m *Mirror) Run(ctx context.Context) error {
	pause := mirrorPause
	for {
		synced, err := m.session(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.stream.Kick()
		m.follow.Lost(err)
		if synced {
			pause = mirrorPause
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
		pause = min(2*pause, mirrorLongest)
	}
}

// errAnother ends a session whose stream is not the one that it began with.
var errAnother = errors.New("the stream was made anew")

// session reads the stream from its beginning and then follows it, and says whether it
// got that far.
func (m *Mirror) session(ctx context.Context) (synced bool, err error) {
	r, err := m.stream.openReader(ctx, m.name)
	if err != nil {
		return false, err
	}
	defer r.close()
	m.begin(r)
	checked := time.Now()
	for {
		if !synced {
			if synced, err = m.finish(ctx, r); err != nil {
				return false, err
			}
		}
		msg, err := r.next(ctx, min(nextWait, m.opts.CheckEvery))
		if err != nil {
			return synced, err
		}
		if msg != nil {
			m.take(*msg)
		}
		if synced && time.Since(checked) >= m.opts.CheckEvery {
			if err := m.check(ctx, r); err != nil {
				return synced, err
			}
			m.compare()
			checked = time.Now()
		}
	}
}

// begin starts a round. The sequences of another stream say nothing about this one.
func (m *Mirror) begin(r *reader) {
	m.round++
	m.count(func(c *MirrorCounts) { c.Resyncs++ })
	if !r.created.Equal(m.created) {
		for subject, s := range m.known {
			s.seq = 0
			m.known[subject] = s
		}
		m.created = r.created
	}
}

// finish tells of what was there before and is no longer, once all that is there has been read.
func (m *Mirror) finish(ctx context.Context, r *reader) (bool, error) {
	if done, err := r.caughtUp(ctx); err != nil || !done {
		return false, err
	}
	for _, s := range m.known {
		if s.round != m.round {
			if err := m.missing(ctx); err != nil {
				return false, err
			}
			break
		}
	}
	m.follow.Synced()
	m.compare()
	return true, nil
}

// compare has the Keeper, if there is one, see what is there.
func (m *Mirror) compare() {
	if m.keeper != nil {
		m.keeper.compare(m.known)
	}
}

// vanish forgets a subject that is not in the stream any more.
func (m *Mirror) vanish(subject string, s sight) {
	delete(m.known, subject)
	reason := Purged
	if !s.expires.IsZero() && !time.Now().Before(s.expires) {
		reason = Expired
	}
	m.gone(s, Departure{Subject: subject, Reason: reason, At: time.Now()})
}

// gone tells of the end of an entry, if there was one.
func (m *Mirror) gone(before sight, d Departure) {
	if before.entry {
		m.count(func(c *MirrorCounts) { c.Entries-- })
		m.follow.Gone(d)
	}
}

// take judges one message.
func (m *Mirror) take(msg Message) {
	before, was := m.known[msg.Subject]
	if was && before.seq == msg.Sequence {
		before.round = m.round
		m.known[msg.Subject] = before
		return
	}
	if !was && len(m.known) >= m.opts.MaxEntries {
		m.beyond(msg)
		return
	}
	if msg.Err != nil {
		m.count(func(c *MirrorCounts) { c.Bad++ })
	}
	if msg.Err != nil && !before.bad { // once for whoever keeps writing it
		m.log.Warn("a message in the discovery feed is not as it should be", "subject", fmt.Sprintf("%.200q", msg.Subject), "sequence", msg.Sequence, "err", msg.Err)
	}
	m.known[msg.Subject] = sight{
		seq: msg.Sequence, round: m.round, entry: msg.Entry != nil, bad: msg.Err != nil, expires: m.expiry(msg),
		ours: m.keeper != nil && msg.Gone == "" && msg.Origin == m.keeper.opts.Origin,
	}
	switch {
	case msg.Entry == nil:
		// What is no entry has taken the place of the one that was there.
		m.gone(before, Departure{Subject: msg.Subject, Reason: cmp.Or(msg.Gone, Purged), Sequence: msg.Sequence, At: msg.At})
	default:
		if !before.entry {
			m.count(func(c *MirrorCounts) { c.Entries++ })
		}
		m.follow.Put(msg)
	}
}

// expiry is when the server removes a message that nothing replaces.
func (m *Mirror) expiry(msg Message) time.Time {
	age := m.stream.MaxAge()
	var ttl wireTTL
	if msg.TTL != "" && ttl.parse(msg.TTL) == nil && ttl.Duration != nil {
		age = *ttl.Duration
	}
	if age < 0 {
		return time.Time{}
	}
	return msg.At.Add(age)
}

func (m *Mirror) beyond(msg Message) {
	first := false
	m.count(func(c *MirrorCounts) { c.Beyond++; first = c.Beyond == 1 })
	if first {
		m.log.Warn("the discovery feed has more entries than are followed", "at_most", m.opts.MaxEntries, "subject", fmt.Sprintf("%.200q", msg.Subject))
	}
}

// check compares what is known with the stream: a purge leaves no word, and a stream may be
// replaced by one that looks the same.
func (m *Mirror) check(ctx context.Context, r *reader) error {
	info, err := m.stream.info(ctx)
	switch {
	case err != nil:
		return err
	case !info.Created.Equal(m.created) || info.State.LastSeq < r.seq:
		return errAnother
	case info.State.Msgs == uint64(len(m.known)) || len(m.known) >= m.opts.MaxEntries:
		return nil
	}
	return m.missing(ctx)
}

// missing tells of the subjects that are not in the stream any more. It asks for them all: what was
// merely not read yet must not seem gone.
func (m *Mirror) missing(ctx context.Context) error {
	info, err := m.stream.info(ctx, jetstream.WithSubjectFilter(Prefix+".>"))
	if err != nil {
		return err
	}
	for subject, s := range m.known {
		// What was written after the list was made is not missing from it.
		if _, there := info.State.Subjects[subject]; !there && s.seq <= info.State.LastSeq {
			m.vanish(subject, s)
		}
	}
	return nil
}
