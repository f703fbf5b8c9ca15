package render

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// Source is where the registrations are from; *client.Client is one.
type Source interface {
	Registrations(ctx context.Context, f muster.RegistrationFilter, preferred bool) (*client.Entries, error)
	WatchRegistrations(ctx context.Context, f *muster.RegistrationFilter, o client.WatchOptions, each func(client.Event) error) error
}

// feed is what is registered as a watch tells it.
type feed struct {
	changed chan struct{} // holds one: something changed since it was taken

	mu      sync.Mutex
	entries map[string]*muster.Entry // by key; those of a whole state
	coming  map[string]*muster.Entry // of a state that is not complete yet; nil: none
}

func newFeed() *feed {
	return &feed{changed: make(chan struct{}, 1), coming: map[string]*muster.Entry{}}
}

// take applies an event. A state that begins anew counts once it is whole.
func (f *feed) take(e client.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case e.Type == client.EventRestart:
		f.coming = map[string]*muster.Entry{}
	case e.Type == muster.EventSynced && f.coming != nil:
		f.entries, f.coming = f.coming, nil
		f.tell()
	case e.Registration == nil: // it only moves the cursor
	case f.coming != nil:
		f.apply(f.coming, e)
	default:
		f.apply(f.entries, e)
		f.tell()
	}
	return nil
}

func (f *feed) apply(to map[string]*muster.Entry, e client.Event) {
	if e.Left {
		delete(to, e.Registration.Key)
		return
	}
	to[e.Registration.Key] = entryOf(e.Registration)
}

func (f *feed) tell() {
	select {
	case f.changed <- struct{}{}:
	default: // whoever takes the one that is there looks after this change
	}
}

// answer returns what is registered now.
func (f *feed) answer() *Answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &Answer{Entries: muster.DistinctEntries(slices.SortedFunc(maps.Values(f.entries), muster.CompareEntries))}
}
