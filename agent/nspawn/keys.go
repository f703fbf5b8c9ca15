package nspawn

import (
	"context"
	"sync"
)

// keys serialises work on the same name.
type keys struct {
	mu   sync.Mutex
	held map[string]*key
}

type key struct {
	turn  chan struct{}
	users int
}

// lock waits for a name's turn, until ctx ends, and returns what ends it.
func (k *keys) lock(ctx context.Context, name string) (func(), error) {
	k.mu.Lock()
	entry, ok := k.held[name]
	if !ok {
		entry = &key{turn: make(chan struct{}, 1)}
		k.held[name] = entry
	}
	entry.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if entry.users--; entry.users == 0 {
			delete(k.held, name)
		}
	}
	select {
	case entry.turn <- struct{}{}:
		return func() { <-entry.turn; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
