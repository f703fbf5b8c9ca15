package check

import "github.com/muster-cloud/muster"

// Hysteresis turns a status only after enough runs in a row. It is a pure state
// machine; the zero value is UNKNOWN, and turns at once.
type Hysteresis struct {
	FailAfter int // runs in a row that turn it away from OK, or to another status that is not OK; 0: 1
	PassAfter int // runs in a row that turn it to OK; 0: 1

	status muster.CheckStatus
	next   muster.CheckStatus // seen last, if it differs
	streak int                // of runs that speak for a turn
}

// Status is the present one.
func (h *Hysteresis) Status() muster.CheckStatus {
	if h.status == "" {
		return muster.CheckUnknown
	}
	return h.status
}

// Observe takes the result of a run and reports whether the status has turned.
//
// Away from OK all that is not OK counts together, and the last one is what it turns to; from
// one that is not OK to another only the same in a row counts, so that what wavers between
// two makes no change each time.
func (h *Hysteresis) Observe(seen muster.CheckStatus) (turned bool) {
	now := h.Status()
	if seen == now {
		h.next, h.streak = "", 0
		return false
	}
	together := now == muster.CheckOK && h.next != "" || h.next == seen
	if !together {
		h.streak = 0
	}
	h.next = seen
	h.streak++
	need := h.FailAfter
	if seen == muster.CheckOK {
		need = h.PassAfter
	}
	if h.streak < max(need, 1) {
		return false
	}
	h.status, h.next, h.streak = seen, "", 0
	return true
}
