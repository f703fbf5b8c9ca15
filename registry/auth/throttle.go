package auth

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// ThrottleOptions are the settings of a Throttle; the zero value works.
type ThrottleOptions struct {
	Burst     int              // failures of one address before it has to wait; default 10
	Every     time.Duration    // one more failure is allowed each; default 6 s
	Addresses int              // remembered at most, the one that failed longest ago goes first; default 4096
	Now       func() time.Time // default time.Now
}

// Throttle counts failed attempts by address: one of IPv4, a /64 of IPv6. It is safe
// for concurrent use, and its memory is bounded.
//
// What it is for is not guessing, which 256 bits make hopeless, but that nobody fills
// logs and the audit with failures. So a caller whose key is right need not be asked
// about: others behind the same address must not lock it out.
type Throttle struct {
	o ThrottleOptions

	mu     sync.Mutex
	known  map[netip.Prefix]*list.Element
	oldest *list.List // of *bucket, the one that failed longest ago in front
}

// bucket is what an address has left.
type bucket struct {
	address netip.Prefix
	left    float64
	at      time.Time // when left was counted
}

// NewThrottle returns a throttle that has seen nobody.
func NewThrottle(o ThrottleOptions) *Throttle {
	if o.Burst <= 0 {
		o.Burst = 10
	}
	if o.Every <= 0 {
		o.Every = 6 * time.Second
	}
	if o.Addresses <= 0 {
		o.Addresses = 4096
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Throttle{o: o, known: map[netip.Prefix]*list.Element{}, oldest: list.New()}
}

// Wait is how long an address has to wait before its next failure is allowed; 0: it
// has not to. An address that cannot be read counts as one.
func (t *Throttle) Wait(address netip.Addr) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.known[network(address)]
	if !ok {
		return 0
	}
	b := e.Value.(*bucket)
	t.refillLocked(b)
	return t.waitLocked(b)
}

// Fail counts a failure. It returns 0 when it was allowed, and otherwise how long the
// address has to wait: such a failure is not worth a line in a log.
func (t *Throttle) Fail(address netip.Addr) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.bucketLocked(network(address))
	if wait := t.waitLocked(b); wait > 0 {
		return wait
	}
	b.left--
	return 0
}

// bucketLocked finds or makes the bucket of an address, the newest from now on.
func (t *Throttle) bucketLocked(address netip.Prefix) *bucket {
	if e, ok := t.known[address]; ok {
		t.oldest.MoveToBack(e)
		b := e.Value.(*bucket)
		t.refillLocked(b)
		return b
	}
	if t.oldest.Len() >= t.o.Addresses {
		first := t.oldest.Front()
		delete(t.known, t.oldest.Remove(first).(*bucket).address)
	}
	b := &bucket{address: address, left: float64(t.o.Burst), at: t.o.Now()}
	t.known[address] = t.oldest.PushBack(b)
	return b
}

func (t *Throttle) refillLocked(b *bucket) {
	now := t.o.Now()
	if since := now.Sub(b.at); since > 0 {
		b.left = min(float64(t.o.Burst), b.left+float64(since)/float64(t.o.Every))
	}
	b.at = now
}

func (t *Throttle) waitLocked(b *bucket) time.Duration {
	if b.left >= 1 {
		return 0
	}
	return max(time.Millisecond, time.Duration((1-b.left)*float64(t.o.Every)))
}

// network is what counts as one address: whoever has an IPv6 address has a /64.
func network(address netip.Addr) netip.Prefix {
	address = address.Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // of the zero Addr
	}
	return prefix
}
