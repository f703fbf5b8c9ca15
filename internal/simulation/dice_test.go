package simulation_test

import (
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"
)

// dice are the random decisions of one actor. They come from the seed and the
// actor's name alone: what one draws changes nothing for another.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newDice(seed uint64, actor string) *dice {
	h := fnv.New64a()
	_, _ = h.Write([]byte(actor)) // never fails
	return &dice{r: rand.New(rand.NewPCG(seed, h.Sum64()))}
}

// share returns 0 to 1.
func (d *dice) share() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.Float64()
}

// chance is true with probability p.
func (d *dice) chance(p float64) bool { return d.share() < p }

// below returns 0 to n-1.
func (d *dice) below(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

// within returns low to high, both included.
func (d *dice) within(low, high int) int { return low + d.below(high-low+1) }

// span returns low to high.
func (d *dice) span(low, high time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return low + time.Duration(d.r.Int64N(int64(high-low)+1))
}

func pick[T any](d *dice, from []T) T { return from[d.below(len(from))] }

// some returns n of the elements, in random order.
func some[T any](d *dice, from []T, n int) []T {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]T, 0, n)
	for _, k := range d.r.Perm(len(from))[:n] {
		out = append(out, from[k])
	}
	return out
}
