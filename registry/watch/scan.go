package watch

import (
	"slices"
	"sync"

	"github.com/muster-cloud/muster"
)

// Scan is what one Spec lets through of the newest changes, worked out once for
// all followers that share it. It looks when it is asked, and remembers the
// matches that the ring still has.
type Scan struct {
	hub  *Hub
	spec Spec

	mu      sync.Mutex
	history uint64
	from    int64 // revisions in (from, to] have been looked at
	to      muster.Position
	hits    []hit // ascending
	buffer  []*muster.Change
}

type hit struct {
	change *muster.Change
	left   bool
}

// Scan prepares to share what spec lets through.
func (h *Hub) Scan(spec Spec) *Scan {
	s := h.snapshot()
	return &Scan{hub: h, spec: spec, history: s.history, from: s.head.Revision, to: s.head}
}

// next returns the first match after a position and where it came from. Without
// one it returns no change and up to where there is none. ErrBehind: a block of
// the log has to be loaded first.
func (s *Scan) next(at state, pos muster.Position) (hit, Source, muster.Position, error) {
	for {
		switch {
		case pos.Revision < at.floor.Revision:
			return hit{}, "", pos, at.compacted("revision %d is older than the log, which begins after %d", pos.Revision, at.floor.Revision)
		case pos.Revision >= at.head.Revision:
			return hit{}, "", pos, nil
		case pos.Revision+1 >= at.oldest:
			found, upTo, ok := s.window(at, pos.Revision)
			if ok {
				return found, FromRing, upTo, nil
			}
			// The ring has moved on meanwhile.
			history := at.history
			if at = s.hub.snapshot(); at.history != history {
				return hit{}, "", pos, at.replaced()
			}
			continue
		}
		block := s.hub.blocks.after(at.history, pos.Revision)
		if len(block) == 0 {
			return hit{}, "", pos, ErrBehind
		}
		for _, c := range block {
			pos = muster.Position{Revision: c.Revision, Tag: c.Batch}
			if deliver, left := s.spec.Match(c); deliver {
				return hit{c, left}, FromLog, pos, nil
			}
		}
	}
}

// window answers from the part that is remembered, after bringing it up to date;
// false when the ring no longer has what is needed.
func (s *Scan) window(at state, after int64) (hit, muster.Position, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.history != at.history || s.to.Revision+1 < at.oldest {
		// What is remembered is void, or the ring has lost what lies between.
		s.history, s.from, s.to, s.hits = at.history, after, muster.Position{Revision: after}, nil
	}
	if !s.forward(at) || !s.backward(after) {
		return hit{}, muster.Position{}, false
	}
	s.forget(at.oldest)
	i, _ := slices.BinarySearchFunc(s.hits, after+1, func(h hit, revision int64) int {
		return int(h.change.Revision - revision)
	})
	if i == len(s.hits) {
		return hit{}, s.to, true
	}
	c := s.hits[i].change
	return s.hits[i], muster.Position{Revision: c.Revision, Tag: c.Batch}, true
}

// forward looks at what was announced since the last time.
func (s *Scan) forward(at state) bool {
	if s.to.Revision >= at.head.Revision {
		return true
	}
	matches, ok := s.match(s.to.Revision, at.head.Revision)
	if ok {
		s.hits = append(s.hits, matches...)
		s.to = at.head
	}
	return ok
}

// backward looks at what came before, for a follower that is further behind.
func (s *Scan) backward(after int64) bool {
	if after >= s.from {
		return true
	}
	matches, ok := s.match(after, s.from)
	if ok {
		s.hits = append(matches, s.hits...)
		s.from = after
	}
	return ok
}

func (s *Scan) match(after, upTo int64) ([]hit, bool) {
	var ok bool
	s.buffer, ok = s.hub.copyRing(s.buffer[:0], s.history, after, upTo)
	defer func() {
		clear(s.buffer)
		if cap(s.buffer) > blockSize {
			s.buffer = nil
		}
	}()
	if !ok {
		return nil, false
	}
	var matches []hit
	for _, c := range s.buffer {
		if deliver, left := s.spec.Match(c); deliver {
			matches = append(matches, hit{c, left})
		}
	}
	return matches, true
}

// forget drops the matches that the ring has dropped, so that they hold no memory.
func (s *Scan) forget(oldest int64) {
	if s.from+1 >= oldest {
		return
	}
	i, _ := slices.BinarySearchFunc(s.hits, oldest, func(h hit, revision int64) int {
		return int(h.change.Revision - revision)
	})
	s.hits = slices.Delete(s.hits, 0, i)
	s.from = oldest - 1
}
