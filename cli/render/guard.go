package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
)

// Calls are how many entries each lookup of a template found, before any was preferred.
type Calls map[string]int

// Note keeps how many a lookup found.
func (c Calls) Note(f muster.RegistrationFilter, found int) {
	parts := []string{f.Cluster, f.Protocol, f.Service, f.Address}
	for i, part := range parts {
		parts[i] = cmp.Or(part, "*")
	}
	c[strings.Join(parts, "/")] = found
}

// total is how many entries were found in all; one that two lookups found counts twice.
func (c Calls) total() int {
	sum := 0
	for _, n := range c {
		sum += n
	}
	return sum
}

// guard refuses a text for which much less was found than for the one in place. A nil
// before: something is in place, and nobody knows what that was from.
func (t *Target) guard(before, now Calls) error {
	for _, call := range slices.Sorted(maps.Keys(now)) {
		n := now[call]
		was, known := before[call]
		switch {
		case n == 0 && t.AllowEmpty:
		case n == 0 && before == nil:
			return t.refuse("--allow-empty", "nothing is registered for %s, and nobody knows what the file in place was from", call)
		case n == 0 && was > 0:
			return t.refuse("--allow-empty", "nothing is registered for %s any more, where %d were", call, was)
		case n > 0 && known && (was-n)*100 > was*t.maxShrink():
			return t.refuse("--max-shrink", "only %d are left of %d for %s, %d %% may go at once", n, was, call, t.maxShrink())
		}
	}
	// A template that asks for something else now is no reason to lose all.
	if len(now) > 0 && now.total() == 0 && before.total() > 0 && !t.AllowEmpty {
		return t.refuse("--allow-empty", "nothing is registered for all that its template asks for, and the file in place is from %d entries", before.total())
	}
	return nil
}

func (t *Target) refuse(flag, format string, args ...any) error {
	return failure(Refused, t.Output, nil, "%s; it is left as it was: give %s if that is right", fmt.Sprintf(format, args...), flag)
}
