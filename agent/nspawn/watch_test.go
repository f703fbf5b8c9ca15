package nspawn_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An end is told of twice: whoever looks at once may be earlier than the kernel, which gives a lock free after it tells
// of its closing.
func TestWatch_TellsTwice(t *testing.T) {
	h := newHost(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	names := h.open().Watch(ctx)
	lock := filepath.Join(h.state, "locks", "m-1")
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for k := range 2 {
		if name := <-names; name != "m-1" {
			t.Errorf("told %q, time %d", name, k+1)
		}
	}
	cancel()
	for range names { // ends since the channel is closed
	}
	if err := os.Remove(lock); err != nil {
		t.Error(err)
	}
}
