package simulation_test

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
)

const (
	callTimeout   = 10 * time.Second // a client's default
	nudgeTimeout  = 2 * time.Second  // a server's for its calls to agents
	serverTimeout = 30 * time.Second // a server's for one operation
)

// quality is how bad the network is: probabilities, and the longest usual delay.
type quality struct {
	lost, unanswered, twice, late float64
	delay                         time.Duration
}

func qualities() []quality {
	return []quality{
		{},
		{delay: 20 * time.Millisecond},
		{lost: 0.02, unanswered: 0.02, twice: 0.02, late: 0.01, delay: 200 * time.Millisecond},
		{lost: 0.1, unanswered: 0.15, twice: 0.1, late: 0.1, delay: 2 * time.Second},
		{unanswered: 0.4, twice: 0.3, late: 0.2, delay: time.Second},
	}
}

// network lies between the server and everybody.
type network struct {
	mu      sync.Mutex
	quality quality
}

func (n *network) set(q quality) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.quality = q
}

func (n *network) now() quality {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.quality
}

// fate is what becomes of one call.
type fate struct {
	there, back, again time.Duration
	lost, unanswered   bool
	twice              bool
}

// link is one party's way to the server.
type link struct {
	name string
	c    *cluster

	mu    sync.Mutex
	kinds map[string]*dice
	to    time.Time // until when nothing gets to the server
	from  time.Time // until when nothing comes back
}

func (c *cluster) newLink(name string) *link {
	return &link{name: name, c: c, kinds: map[string]*dice{}}
}

// cut cuts the link, in either or both directions, for a while.
func (l *link) cut(to, from bool, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to {
		l.to = time.Now().Add(d)
	}
	if from {
		l.from = time.Now().Add(d)
	}
}

func (l *link) heal() { l.cut(true, true, 0) }

func (l *link) open() (to, from bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return !now.Before(l.to), !now.Before(l.from)
}

func (l *link) fate(kind string) fate {
	l.mu.Lock()
	d := l.kinds[kind]
	if d == nil {
		d = newDice(l.c.seed, l.name+"/"+kind)
		l.kinds[kind] = d
	}
	l.mu.Unlock()
	q := l.c.network.now()
	f := fate{
		there: d.span(0, q.delay), back: d.span(0, q.delay), again: d.span(0, 20*time.Second),
		lost: d.chance(q.lost), unanswered: d.chance(q.unanswered), twice: d.chance(q.twice),
	}
	if d.chance(q.late) {
		f.there += d.span(callTimeout/2, 2*callTimeout) // it may arrive after the caller has given up
	}
	return f
}

func unreachable(why string) error {
	return muster.Errorf(muster.Unavailable, "the server does not answer: %s", why)
}

type answer[T any] struct {
	value T
	err   error
}

// call carries one call to whichever server is there when it arrives. A caller
// that gives up does not stop what is on its way.
func call[T any](ctx context.Context, l *link, kind string, do func(context.Context, *life) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	f := l.fate(kind)
	answered := make(chan answer[T], 1)
	l.c.background(func() {
		time.Sleep(f.there)
		if to, _ := l.open(); f.lost || !to {
			return
		}
		if f.twice {
			l.c.background(func() {
				time.Sleep(f.again)
				_, _ = serve(l.c, do)
			})
		}
		a, ok := serve(l.c, do)
		time.Sleep(f.back)
		if _, from := l.open(); !ok || f.unanswered || !from {
			return
		}
		answered <- a
	})
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, unreachable("no answer in time")
	}
}

// serve runs a call on the server that is there; false when it died over it.
func serve[T any](c *cluster, do func(context.Context, *life) (T, error)) (answer[T], bool) {
	life := c.life.Load()
	if life == nil {
		return answer[T]{err: unreachable("connection refused")}, true
	}
	ctx, cancel := context.WithTimeout(context.Background(), serverTimeout)
	defer cancel()
	value, err := do(ctx, life)
	select {
	case <-life.dead:
		return answer[T]{}, false
	default:
		return answer[T]{value, err}, true
	}
}

// copied is a value as it is after a way over the wire: nothing of it is shared.
func copied[T any](from any) (to T) {
	b, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(b, &to)
	}
	if err != nil {
		panic(err) // all that is sent can be written as JSON
	}
	return to
}
