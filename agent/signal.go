package agent

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// signal says that something is due; raising it again before it is taken
// changes nothing.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// wait reports whether the signal came before ctx ended.
func (s signal) wait(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-s:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep waits for d, for as long as no signal comes, and reports whether ctx
// goes on. A nil signal never comes.
func sleep(ctx context.Context, d time.Duration, early signal) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-early:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// pauses are those between tries of one thing: growing, jittered, bounded.
type pauses struct {
	b      backoff.ExponentialBackOff
	random func() float64
}

const firstPause = 500 * time.Millisecond

func (a *Agent) newPauses() *pauses { return newPauses(a.o.Random) }

// newPauses makes pauses that vary by random; nil: math/rand/v2's.
func newPauses(random func() float64) *pauses {
	if random == nil {
		random = rand.Float64
	}
	p := &pauses{random: random, b: backoff.ExponentialBackOff{InitialInterval: firstPause, Multiplier: 2, MaxInterval: time.Hour}}
	p.b.Reset()
	return p
}

// next returns the next pause, half as long as its turn to half as long again,
// and never longer than the limit.
func (p *pauses) next(limit time.Duration) time.Duration {
	return min(time.Duration(float64(p.b.NextBackOff())*(0.5+p.random())), limit)
}

func (p *pauses) reset() { p.b.Reset() }
