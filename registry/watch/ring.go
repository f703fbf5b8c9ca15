package watch

import "github.com/muster-cloud/muster"

// ring holds the newest changes, each in the slot of its revision.
type ring []*muster.Change

func (r ring) put(c *muster.Change) { r[r.slot(c.Revision)] = c }

func (r ring) slot(revision int64) int { return int(revision % int64(len(r))) }

// copyRing appends the changes in (after, upTo] of a history to into; false when
// the ring does not have them all any more.
func (h *Hub) copyRing(into []*muster.Change, history uint64, after, upTo int64) ([]*muster.Change, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if history != h.state.history || after+1 < h.state.oldest || upTo > h.state.head.Revision {
		return into, false
	}
	for revision := after + 1; revision <= upTo; revision++ {
		into = append(into, h.ring[h.ring.slot(revision)])
	}
	return into, true
}
