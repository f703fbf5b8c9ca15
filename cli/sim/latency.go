package sim

import (
	"math"
	"sync/atomic"
	"time"
)

// The buckets of a latency: 16 to each doubling, from a microsecond to minutes,
// so that a quantile is at most 5 % too high.
const (
	bucketsPerDoubling = 16
	buckets            = 28 * bucketsPerDoubling
)

// latency counts spans. It is safe for concurrent use.
type latency struct{ counts [buckets]atomic.Int64 }

func (l *latency) add(d time.Duration) {
	at := int(math.Ceil(bucketsPerDoubling * math.Log2(max(float64(d)/float64(time.Microsecond), 1))))
	l.counts[min(at, buckets-1)].Add(1)
}

// spans are counted spans that no longer change.
type spans [buckets]int64

func (l *latency) read() *spans {
	s := new(spans)
	for k := range l.counts {
		s[k] = l.counts[k].Load()
	}
	return s
}

// since returns the spans that came after earlier ones.
func (s *spans) since(earlier *spans) *spans {
	out := new(spans)
	for k := range s {
		out[k] = s[k] - earlier[k]
	}
	return out
}

func (s *spans) total() (n int64) {
	for _, count := range s {
		n += count
	}
	return n
}

// quantile returns a span that a part q of them, 0 to 1, do not exceed; 0 when
// there are none.
func (s *spans) quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(s.total())))
	var below int64
	for k, count := range s {
		if below += count; count > 0 && below >= rank {
			return time.Duration(math.Exp2(float64(k)/bucketsPerDoubling) * float64(time.Microsecond))
		}
	}
	return 0
}
