package registration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

// DefaultParallel is how many messages a Keeper has under way at most.
const DefaultParallel = 32

// How long a Keeper waits before it tries again.
const (
	retryFirst   = 250 * time.Millisecond
	retryLongest = 5 * time.Second  // while the feed cannot be reached
	refusedFirst = time.Second      // an entry that was refused
	refusedMost  = time.Minute      //
	disputePause = 30 * time.Second // an entry that somebody else has written over
	disputes     = 3                // how often it is written again at once
	unseenPause  = 5 * time.Second  // an entry that a Mirror does not see
)

// errStopped is what comes of a job that the end of Run cut off.
var errStopped = errors.New("stopped")

// KeeperOptions sets a Keeper; the zero value works.
type KeeperOptions struct {
	Origin   string               // the uid of our cluster, which our messages carry; required for JetStream
	MaxAge   func() time.Duration // how long the stream keeps an entry without a TTL; nil: DefaultMaxAge
	Parallel int                  // 0: DefaultParallel
	// OnState is called when the feed turns out to be unreachable, and when something has reached
	// it again, one at a time; it must not block or call the Keeper.
	OnState func(State)
	Logger  *slog.Logger // nil: slog.Default()
}

// KeeperCounts is what a Keeper has done.
type KeeperCounts struct {
	Entries   int // desired now
	Pending   int // subjects that are not yet as desired
	Publishes int // acknowledged, of new and changed entries
	Refreshes int // acknowledged, of entries that were there
	Markers   int // acknowledged
	Failures  int // messages that were not acknowledged
	Overtaken int // messages that somebody else's came before
	Disputes  int // times that somebody else wrote over an entry of ours
	Refused   int // entries that the feed does not take now
}

// Keeper keeps the entries that are desired in the feed: it publishes them, refreshes them in
// time and removes what is no longer desired. It queues nothing: each message is made of
// what is desired at the moment that it is sent.
type Keeper struct {
	pub  Publisher
	opts KeeperOptions
	log  *slog.Logger
	wake chan struct{}

	mu      sync.Mutex
	slots   map[string]*slot
	spared  map[string]bool // nil: nobody has said yet what is desired in all
	due     agenda
	running int
	state   State
	fails   int       // in a row, since the feed could last be reached
	retry   time.Time // while it is down: when to try again
	counts  KeeperCounts
	refused int           // slots that have an err
	since   time.Time     // when the first of them was refused
	changed chan struct{} // closed at the next change of a slot
}

// NewKeeper makes a Keeper; Run does the work.
func NewKeeper(pub Publisher, opts KeeperOptions) *Keeper {
	opts.Parallel = cmp.Or(opts.Parallel, DefaultParallel)
	if opts.MaxAge == nil {
		opts.MaxAge = func() time.Duration { return DefaultMaxAge }
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Keeper{
		pub: pub, opts: opts, log: opts.Logger, wake: make(chan struct{}, 1),
		slots: map[string]*slot{}, state: State{Up: true, Since: time.Now()}, changed: make(chan struct{}),
	}
}

// Set says what is desired on some subjects: an entry, which must be valid and not be changed any
// more, or nil for none.
func (k *Keeper) Set(changes map[string]*muster.Registration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for subject, want := range changes {
		k.setLocked(subject, want)
	}
	k.poke()
}

// Replace says all that is desired. What an earlier life of ours left in the feed and is not in all is a
// stray, but for the subjects that are spared: they are left to run out by themselves.
func (k *Keeper) Replace(all map[string]*muster.Registration, spared ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spared = make(map[string]bool, len(spared))
	for _, subject := range spared {
		k.spared[subject] = true
	}
	for subject := range k.slots {
		if all[subject] == nil {
			k.setLocked(subject, nil)
		}
	}
	for subject, want := range all {
		k.setLocked(subject, want)
	}
	k.poke()
}

func (k *Keeper) setLocked(subject string, want *muster.Registration) {
	s, ok := k.slots[subject]
	if !ok {
		s = &slot{subject: subject, index: -1}
		k.slots[subject] = s
	} else if reflect.DeepEqual(s.want, want) {
		return
	}
	s.want, s.there, s.fails = want, false, 0
	k.markLocked(s, nil)
	s.version++
	k.scheduleLocked(s, time.Now())
}

// Wake has the Keeper try at once what it could not do, because the feed is there again.
func (k *Keeper) Wake() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails, k.retry = 0, time.Time{}
	for _, s := range k.slots {
		if s.err != nil { // it may have been the stream's fault
			k.scheduleLocked(s, time.Now())
		}
	}
	k.poke()
}

// Counts returns what it has done so far.
func (k *Keeper) Counts() KeeperCounts {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.counts
	c.Refused = k.refused
	for _, s := range k.slots {
		if s.want != nil {
			c.Entries++
		}
		if !s.there {
			c.Pending++
		}
	}
	return c
}

// Wait waits until some subjects, or all, are as desired, or the context ends.
func (k *Keeper) Wait(ctx context.Context, subjects ...string) error {
	for {
		k.mu.Lock()
		pending, changed := k.pendingLocked(subjects), k.changed
		k.mu.Unlock()
		if pending == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d entries of the discovery feed are not as they should be yet: %w", pending, context.Cause(ctx))
		case <-changed:
		}
	}
}

func (k *Keeper) pendingLocked(subjects []string) int {
	pending := 0
	if len(subjects) == 0 {
		for _, s := range k.slots {
			if !s.there {
				pending++
			}
		}
	}
	for _, subject := range subjects {
		if s := k.slots[subject]; s != nil && !s.there {
			pending++
		}
	}
	return pending
}

// Run works until the context ends, and waits for what is under way. Entries stay in the feed for
// their time to live.
func (k *Keeper) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		k.mu.Lock()
		next := k.launchLocked(ctx, &workers)
		k.mu.Unlock()
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// launchLocked starts what is due, and returns how long nothing else is. While the feed is
// down one message at a time finds out whether it still is.
func (k *Keeper) launchLocked(ctx context.Context, workers *sync.WaitGroup) time.Duration {
	now := time.Now()
	for {
		s := k.due.first()
		switch {
		case s == nil:
			return time.Hour
		case s.due.After(now):
			return s.due.Sub(now)
		case k.running >= k.opts.Parallel || !k.state.Up && k.running > 0:
			return time.Hour // the end of one of them wakes us
		case !k.state.Up && k.retry.After(now):
			return k.retry.Sub(now)
		}
		k.due.remove(s)
		s.busy = true
		k.running++
		j := s.job()
		j.probe = !k.state.Up
		workers.Go(func() {
			o := k.perform(ctx, j)
			if ctx.Err() != nil {
				o.err = errStopped
			}
			k.finish(s, j, o)
		})
	}
}

func (k *Keeper) scheduleLocked(s *slot, at time.Time) {
	if s.busy {
		return // whoever has it looks again
	}
	s.due = at
	k.due.put(s)
}

func (k *Keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// finish takes what came of a job.
func (k *Keeper) finish(s *slot, j job, o outcome) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running--
	s.busy = false
	k.countLocked(o)
	s.learn(o)
	now := time.Now()
	next := now
	switch same := s.version == j.version; {
	case errors.Is(o.err, errStopped):
	case errors.Is(o.err, ErrUnavailable):
		k.downLocked(j, o.err)
	case !same:
		k.upLocked()
	case errors.Is(o.err, ErrOvertaken):
		k.upLocked()
		if s.fails++; s.fails > disputes {
			next = now.Add(disputePause)
		}
	case o.err != nil:
		k.upLocked()
		next = now.Add(k.refuseLocked(s, o.err))
	default:
		k.upLocked()
		s.there, s.fails, s.wrote = true, 0, now
		k.markLocked(s, nil)
		next = k.nextLocked(s, now)
	}
	if s.want == nil && s.there {
		delete(k.slots, s.subject)
	} else if !next.IsZero() {
		k.scheduleLocked(s, next)
	}
	close(k.changed)
	k.changed = make(chan struct{})
	k.poke()
}

// nextLocked is when an entry that was just seen to is due again: earlier by chance, so that
// entries which came together do not stay together.
func (k *Keeper) nextLocked(s *slot, now time.Time) time.Time {
	maxAge := k.opts.MaxAge()
	if s.want == nil || k.pub.Kind() == Noop {
		return time.Time{}
	}
	every := cmp.Or(Refresh(s.want.TTL, maxAge), maxAge/refreshesPerTTL)
	return now.Add(every - rand.N(every/10+1))
}

func (k *Keeper) downLocked(j job, err error) {
	if !k.state.Up && !j.probe {
		return // one of those that were under way when it went down
	}
	k.retry = time.Now().Add(min(retryFirst<<min(k.fails, 10), retryLongest))
	k.fails++
	if k.state.Up {
		k.turnLocked(State{Reason: err.Error(), Since: time.Now()})
	}
}

func (k *Keeper) upLocked() {
	k.fails, k.retry = 0, time.Time{}
	if !k.state.Up {
		k.turnLocked(State{Up: true, Since: time.Now()})
	}
}

func (k *Keeper) turnLocked(s State) {
	k.state = s
	if k.opts.OnState != nil {
		k.opts.OnState(s)
	}
}

func (k *Keeper) countLocked(o outcome) {
	switch {
	case errors.Is(o.err, ErrOvertaken):
		k.counts.Overtaken++
	case o.err != nil:
		k.counts.Failures++
	case o.did == published:
		k.counts.Publishes++
	case o.did == refreshed:
		k.counts.Refreshes++
	case o.did == removed:
		k.counts.Markers++
	}
}
