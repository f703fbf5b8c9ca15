package transport

import (
	"container/list"
	"context"
	"sync"

	"github.com/vektah/gqlparser/v2/ast"
)

// cache keeps what was used last, within a weight. The first value that is put
// under a key stays until it is pushed out.
type cache[K comparable, V any] struct {
	limit int

	mu    sync.Mutex
	used  int
	order *list.List // of *entry, the most recently used first
	byKey map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key    K
	value  V
	weight int
}

func newCache[K comparable, V any](limit int) *cache[K, V] {
	return &cache[K, V]{limit: limit, order: list.New(), byKey: map[K]*list.Element{}}
}

func (c *cache[K, V]) get(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element, ok := c.byKey[key]
	if !ok {
		return value, false
	}
	c.order.MoveToFront(element)
	return element.Value.(*entry[K, V]).value, true
}

func (c *cache[K, V]) put(key K, value V, weight int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byKey[key]; ok || weight > c.limit {
		return
	}
	c.byKey[key] = c.order.PushFront(&entry[K, V]{key, value, weight})
	for c.used += weight; c.used > c.limit; {
		last := c.order.Remove(c.order.Back()).(*entry[K, V])
		delete(c.byKey, last.key)
		c.used -= last.weight
	}
}

// documents is gqlgen's query cache: the parsed and validated documents by their
// text, which has passed the limits too.
type documents struct {
	*cache[string, *ast.QueryDocument]
}

// Get returns the document of a text.
func (d documents) Get(_ context.Context, text string) (*ast.QueryDocument, bool) { return d.get(text) }

// Add keeps a document, unless its text is long.
func (d documents) Add(_ context.Context, text string, doc *ast.QueryDocument) {
	if len(text) <= maxCachedText {
		d.put(text, doc, len(text))
	}
}
