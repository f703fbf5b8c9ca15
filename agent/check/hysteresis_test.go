package check_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/check"
)

// short writes statuses as letters.
func short(s muster.CheckStatus) string { return string(s)[:1] }

func long(c rune) muster.CheckStatus {
	return map[rune]muster.CheckStatus{'O': muster.CheckOK, 'W': muster.CheckWarning, 'C': muster.CheckCritical, 'U': muster.CheckUnknown}[c]
}

func TestHysteresis(t *testing.T) {
	for name, c := range map[string]struct {
		fail, pass int
		seen, want string // one letter a run: what was seen, and the status after it
	}{
		"at once":                          {0, 0, "OCOWU", "OCOWU"},
		"two to fail":                      {2, 1, "OCOCCO", "OOOOCO"},
		"three to pass":                    {1, 3, "COOOCOOCOOO", "CCCOCCCCCCO"},
		"away from OK all counts":          {3, 1, "OWCU", "OOOU"},
		"wavering makes no change":         {2, 1, "OCCWCWCWWW", "OOCCCCCCWW"},
		"from nothing with a threshold":    {2, 2, "COOCC", "UUOOC"},
		"nothing is what it already is":    {1, 1, "UU", "UU"},
		"OK in between begins the failing": {3, 1, "OCCOCCC", "OOOOOOC"},
	} {
		h := check.Hysteresis{FailAfter: c.fail, PassAfter: c.pass}
		var got strings.Builder
		for _, letter := range c.seen {
			before := h.Status()
			if turned := h.Observe(long(letter)); turned != (h.Status() != before) {
				t.Errorf("%s: turned %v from %s to %s", name, turned, before, h.Status())
			}
			got.WriteString(short(h.Status()))
		}
		if got.String() != c.want {
			t.Errorf("%s: %s gives %s, want %s", name, c.seen, got.String(), c.want)
		}
	}
}

// TestHysteresis_TurnsOnlyAfterEnough compares it with what was seen, whatever that is.
func TestHysteresis_TurnsOnlyAfterEnough(t *testing.T) {
	statuses := []muster.CheckStatus{muster.CheckOK, muster.CheckWarning, muster.CheckCritical, muster.CheckUnknown}
	rapid.Check(t, func(t *rapid.T) {
		fail, pass := rapid.IntRange(1, 5).Draw(t, "fail"), rapid.IntRange(1, 5).Draw(t, "pass")
		h := check.Hysteresis{FailAfter: fail, PassAfter: pass}
		var seen []muster.CheckStatus
		last := 0 // the run of the last turn
		for range rapid.IntRange(1, 60).Draw(t, "runs") {
			before, now := h.Status(), rapid.SampledFrom(statuses).Draw(t, "status")
			seen = append(seen, now)
			turned := h.Observe(now)
			run := 0 // how many in a row, up to now, speak for a turn
			for i := len(seen) - 1; i >= last; i-- {
				if seen[i] == before || before != muster.CheckOK && seen[i] != now {
					break
				}
				run++
			}
			need := fail
			if now == muster.CheckOK {
				need = pass
			}
			if want := now != before && run >= need; turned != want {
				t.Fatalf("after %v, at %s: turned %v, want %v (%d in a row, %d needed)", seen, before, turned, want, run, need)
			}
			if turned && h.Status() != now || !turned && h.Status() != before {
				t.Fatalf("after %v it is %s", seen, h.Status())
			}
			if turned {
				last = len(seen)
			}
		}
	})
}
