package watch

import (
	"context"
	"fmt"

	"github.com/muster-cloud/muster"
)

// Check tells whether a subscription can resume from a cursor without a gap, and
// from which position. COMPACTED, with the oldest cursor in the details, when the
// cursor is of another epoch or history, above the head or below the floor.
func (h *Hub) Check(ctx context.Context, c muster.Cursor) (muster.Position, error) {
	s := h.snapshot()
	switch {
	case c.Epoch != s.epoch:
		return muster.Position{}, s.compacted("the cursor is of another history of the database")
	case c.Revision < s.floor.Revision:
		return muster.Position{}, s.compacted("revision %d is older than the log, which begins after %d", c.Revision, s.floor.Revision)
	case c.Position == s.head, c.Position == s.floor, c.Revision == 0:
		return c.Position, nil
	}
	at, found, err := h.positionAt(ctx, s.history, c.Revision)
	switch {
	case err != nil:
		return muster.Position{}, err
	case !found:
		return muster.Position{}, s.compacted("revision %d is not in the log, which ends at %d", c.Revision, s.head.Revision)
	case at != c.Position:
		return muster.Position{}, s.compacted("revision %d was written by another history of the database", c.Revision)
	}
	return at, nil
}

// positionAt asks the log for what the ring does not have: a revision above the
// head may be durable and about to be announced.
func (h *Hub) positionAt(ctx context.Context, history uint64, revision int64) (muster.Position, bool, error) {
	if got, ok := h.copyRing(nil, history, revision-1, revision); ok {
		return muster.Position{Revision: revision, Tag: got[0].Batch}, true, nil
	}
	h.logReads.Add(1)
	at, found, err := h.log.PositionAt(ctx, revision)
	if err != nil {
		return muster.Position{}, false, unreadable(revision, err)
	}
	return at, found, nil
}

func (s state) compacted(format string, args ...any) error {
	return &muster.Error{
		Code:    muster.Compacted,
		Message: fmt.Sprintf(format, args...) + ": list again and watch from the cursor of SYNCED",
		Details: map[string]any{"oldest": muster.Cursor{Epoch: s.epoch, Position: s.floor}.String()},
	}
}

// replaced is the end of those who followed a history that is void.
func (s state) replaced() error {
	return s.compacted("the database went back to another history")
}
