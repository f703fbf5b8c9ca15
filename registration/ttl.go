package registration

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/muster-cloud/muster"
)

// refreshesPerTTL is how often an entry is published again in the time that it lives.
const refreshesPerTTL = 3

// wireTTL is a TTL as JSON.
type wireTTL struct{ *time.Duration }

// IsZero reports whether there is none to write.
func (t wireTTL) IsZero() bool { return t.Duration == nil }

// MarshalJSON writes `never`, or Go's text.
func (t wireTTL) MarshalJSON() ([]byte, error) {
	return json.Marshal(muster.FormatRegistrationTTL(*t.Duration))
}

// UnmarshalJSON takes what writers write: text, nanoseconds, and null or what is not
// above zero for none.
func (t *wireTTL) UnmarshalJSON(data []byte) error {
	t.Duration = nil
	if string(data) == "null" {
		return nil
	}
	var text string
	if data[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
		return t.parse(text)
	}
	ns, err := strconv.ParseFloat(string(data), 64)
	if err != nil || ns >= 1<<63 {
		return fmt.Errorf("ttl: %.80q is no span", data)
	}
	if ttl := time.Duration(ns); ttl > 0 {
		t.Duration = &ttl
	}
	return nil
}

// parse also takes what our own rules refuse, such as fractions of seconds: it is others'
// to choose, and the server that keeps it.
func (t *wireTTL) parse(text string) error {
	ttl, err := time.ParseDuration(text)
	if err != nil && text != "" {
		ttl, err = muster.ParseRegistrationTTL("ttl", text)
		if err != nil {
			return err
		}
	}
	if ttl > 0 || ttl == muster.RegistrationTTLForever {
		t.Duration = &ttl
	}
	return nil
}

// CheckTTL refuses a TTL that a stream whose messages live for maxAge cannot
// keep: the server would shorten it and say nothing.
func CheckTTL(field string, ttl *time.Duration, maxAge time.Duration) error {
	if ttl != nil && *ttl > maxAge {
		return muster.InvalidField(field, "%s is longer than the feed keeps an entry, %s; give a shorter one, or never", *ttl, maxAge)
	}
	return nil
}

// Refresh returns how long after a publication an entry is published again: a third of its TTL,
// or of maxAge when it has none, and 0 when it never expires.
func Refresh(ttl *time.Duration, maxAge time.Duration) time.Duration {
	switch {
	case ttl == nil:
		return maxAge / refreshesPerTTL
	case *ttl == muster.RegistrationTTLForever:
		return 0
	default:
		return min(*ttl, maxAge) / refreshesPerTTL
	}
}
