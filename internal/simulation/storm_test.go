package simulation_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mattn/go-sqlite3"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

var (
	errKilled = errors.New("the server was killed")
	errOdd    = errors.New("an odd row")
)

// mood is what the disk is up to.
type mood string

const (
	fair    mood = "fair"    // commits take their time now and then
	calm    mood = "calm"    // for good, when the weather is over
	flaky   mood = "flaky"   // any step fails now and then
	full    mood = "full"    // nothing can be written
	unsure  mood = "unsure"  // it was committed, and nobody can find out
	stalled mood = "stalled" // a commit takes until the mood passes
	odd     mood = "odd"     // batches are refused for what is in them
)

func moods() []mood { return []mood{flaky, full, unsure, stalled, odd} }

// storm is the disk's mood, for a while.
type storm struct {
	c    *cluster
	dice map[store.Point]*dice // what is drawn at one point changes nothing at another

	mu    sync.Mutex
	mood  mood
	until time.Time
}

func (c *cluster) newStorm() *storm {
	s := &storm{c: c, dice: map[store.Point]*dice{}}
	for _, p := range []store.Point{store.BeforeWrite, store.BeforeCommit, store.DuringCommit, store.AfterCommit, store.Verify, store.BeforeSweep} {
		s.dice[p] = newDice(c.seed, "storm/"+string(p))
	}
	return s
}

func (s *storm) set(m mood, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mood, s.until = m, time.Now().Add(d)
}

func (s *storm) now() (mood, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(s.until); left > 0 || s.mood == calm {
		return s.mood, left
	}
	return fair, 0
}

// strike is what happens at a point of a life's store.
func (s *storm) strike(l *life, p store.Point) error {
	mood, left := s.now()
	dice := s.dice[p]
	switch {
	case mood == stalled && p == store.BeforeWrite:
		s.linger(l, left)
	case mood != calm && dice.chance(0.1):
		s.linger(l, dice.span(0, 2*time.Second)) // so that a kill meets commits half-way
	}
	if l.isDead() {
		return errKilled
	}
	switch {
	case mood == flaky && dice.chance(0.15):
		return sqlite3.Error{Code: sqlite3.ErrIoErr}
	case mood == full && (p == store.BeforeWrite || p == store.BeforeSweep):
		return sqlite3.Error{Code: sqlite3.ErrFull}
	case mood == unsure && p == store.AfterCommit && dice.chance(0.5):
		return sqlite3.Error{Code: sqlite3.ErrIoErr}
	case mood == unsure && p == store.Verify && dice.chance(0.7):
		return sqlite3.Error{Code: sqlite3.ErrCantOpen}
	case mood == odd && p == store.BeforeCommit && dice.chance(0.4):
		return errOdd
	}
	return nil
}

func (s *storm) linger(l *life, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.dead:
	}
}

func (l *life) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

// disk is the store as the registry of one life has it: what it commits is
// judged, and once that life was killed nothing gets through.
type disk struct {
	*store.Store
	c *cluster
	l *life
}

func (d disk) Load(ctx context.Context) (*muster.State, error) {
	if d.l.isDead() {
		return nil, errKilled
	}
	return d.Store.Load(ctx)
}

func (d disk) Commit(ctx context.Context, b *muster.Batch) error {
	if d.l.isDead() {
		return errKilled
	}
	d.c.judgeTurns(d.l, b)
	return d.Store.Commit(ctx, b)
}

func (d disk) SaveLastSeen(ctx context.Context, seen map[muster.NodeUID]time.Time) error {
	if d.l.isDead() {
		return errKilled
	}
	return d.Store.SaveLastSeen(ctx, seen)
}

func (d disk) ForgetRequests(ctx context.Context, before time.Time) error {
	if d.l.isDead() {
		return errKilled
	}
	return d.Store.ForgetRequests(ctx, before)
}

// Compact lets the book have everything before it goes.
func (d disk) Compact(ctx context.Context, keep muster.Retention) (muster.Position, int64, error) {
	if d.l.isDead() {
		return muster.Position{}, 0, errKilled
	}
	d.c.book.read(d.l)
	return d.Store.Compact(ctx, keep)
}
