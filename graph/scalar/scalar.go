// Package scalar reads and writes the scalars of schema.graphqls that are not
// GraphQL's own: Time, Duration, Cursor, Map and Bytes.
//
// Reading refuses what it cannot take whole, with a message that says what would
// do. Nothing here looks at the clock or the registry.
package scalar

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
)

// MarshalTime writes RFC 3339 in UTC, and null for the zero time.
func MarshalTime(t time.Time) graphql.Marshaler {
	if t.IsZero() {
		return graphql.Null
	}
	return quoted(t.UTC().Format(time.RFC3339Nano))
}

// UnmarshalTime reads RFC 3339.
func UnmarshalTime(v any) (time.Time, error) {
	s, ok := v.(string)
	if !ok {
		return time.Time{}, fmt.Errorf("a Time is RFC 3339 text such as \"2026-01-02T15:04:05Z\"")
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not a Time: write RFC 3339 such as \"2026-01-02T15:04:05Z\"", s)
	}
	return t.UTC(), nil
}

// MarshalDuration writes Go's text, such as "1m30s".
func MarshalDuration(d time.Duration) graphql.Marshaler { return quoted(d.String()) }

// UnmarshalDuration reads Go's text.
func UnmarshalDuration(v any) (time.Duration, error) {
	s, ok := v.(string)
	if !ok {
		return 0, fmt.Errorf("a Duration is text such as \"10s\" or \"1h30m\"")
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a Duration: write text such as \"10s\" or \"1h30m\"", s)
	}
	return d, nil
}

// MarshalCursor writes the opaque text.
func MarshalCursor(c muster.Cursor) graphql.Marshaler { return quoted(c.String()) }

// UnmarshalCursor reads the opaque text.
func UnmarshalCursor(v any) (muster.Cursor, error) {
	s, ok := v.(string)
	if !ok {
		return muster.Cursor{}, fmt.Errorf("a Cursor is the text that this server gave")
	}
	return muster.ParseCursor(s)
}

// MarshalMap writes an object with sorted keys; nil is the empty one.
func MarshalMap(m muster.Map) graphql.Marshaler {
	return graphql.WriterFunc(func(w io.Writer) {
		if m == nil {
			m = muster.Map{}
		}
		b, _ := json.Marshal(m) // strings only: cannot fail
		_, _ = w.Write(b)
	})
}

// UnmarshalMap reads an object whose values are all strings.
func UnmarshalMap(v any) (muster.Map, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("a Map is an object whose values are strings, such as {zone: \"a\"}")
	}
	m := make(muster.Map, len(object))
	for key, value := range object {
		s, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("the value of %q in a Map has to be a string: quote it", key)
		}
		m[key] = s
	}
	return m, nil
}

// MarshalBytes writes base64.
func MarshalBytes(b []byte) graphql.Marshaler { return quoted(base64.StdEncoding.EncodeToString(b)) }

// UnmarshalBytes reads base64.
func UnmarshalBytes(v any) ([]byte, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("a value of Bytes is base64 text")
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("that is not base64: %w", err)
	}
	return b, nil
}

func quoted(s string) graphql.Marshaler {
	return graphql.WriterFunc(func(w io.Writer) { _, _ = io.WriteString(w, strconv.Quote(s)) })
}
