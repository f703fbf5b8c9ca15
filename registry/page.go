package registry

import (
	"encoding/base64"
	"iter"

	"github.com/muster-cloud/muster"
)

// edge makes the cursor of a keyset page: the key that it continues after.
func edge(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func parseEdge(s *string) (string, error) {
	if s == nil {
		return "", nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(*s)
	if err != nil || len(b) == 0 || len(b) > 2*muster.MaxNameBytes {
		return "", muster.InvalidField("after", "it is not an edge's cursor; use one that this list gave, as it came")
	}
	return string(b), nil
}

// take collects a page of a walk that begins after `after`.
func take[T any](all iter.Seq[T], limit int, after string, key func(T) string) ([]T, *muster.PageInfo) {
	info := &muster.PageInfo{HasPreviousPage: after != ""}
	var page []T
	for object := range all {
		if len(page) == limit {
			info.HasNextPage = true
			break
		}
		page = append(page, object)
	}
	if len(page) > 0 {
		start, end := edge(key(page[0])), edge(key(page[len(page)-1]))
		info.StartCursor, info.EndCursor = &start, &end
	}
	return page, info
}

func where[T any](all iter.Seq[T], keep func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for object := range all {
			if keep(object) && !yield(object) {
				return
			}
		}
	}
}

func count[T any](all iter.Seq[T]) int {
	n := 0
	for range all {
		n++
	}
	return n
}
