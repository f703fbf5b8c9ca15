package simulation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/watch"
)

// watcher follows the instances, or a part of them, and resumes where it was
// whatever ends the stream.
type watcher struct {
	c      *cluster
	name   string
	dice   *dice
	lazy   bool
	filter *muster.InstanceFilter

	cursor  *muster.Cursor
	synced  bool
	objects map[string]string // JSON by id
	// What came to be delivered, for the record.
	events, resumed, listed, compacted int
}

func (c *cluster) newWatcher(k int) *watcher {
	name := fmt.Sprintf("watcher-%d", k)
	w := &watcher{c: c, name: name, dice: newDice(c.seed, name), objects: map[string]string{}}
	w.lazy = w.dice.chance(0.4)
	switch w.dice.below(3) {
	case 0:
		w.filter = &muster.InstanceFilter{Status: []muster.InstanceStatus{muster.Running, muster.Provisioning}}
	case 1:
		size := muster.Nano
		w.filter = &muster.InstanceFilter{Type: &size}
	}
	return w
}

var errDropped = errors.New("the connection dropped")

func (w *watcher) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if l := w.c.life.Load(); l != nil {
			w.stream(ctx, l)
		}
		sleep(ctx, w.dice.span(0, pick(w.dice, []time.Duration{time.Second, 10 * time.Second, 5 * time.Minute})))
	}
}

// stream follows one server until that or the connection ends.
func (w *watcher) stream(ctx context.Context, l *life) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	spec, err := specOf(sctx, l.Registry, w.filter)
	if err != nil {
		w.c.fault("%s: %v", w.name, err)
		return
	}
	request := watch.Request{Since: w.cursor, Initial: true}
	if w.cursor == nil {
		w.listed++
		clear(w.objects)
	} else {
		w.resumed++
	}
	w.synced = false
	err = l.hub.Follow(sctx, spec, request, func(e *muster.Event) error {
		if w.c.book.read(l); w.c.book.head() < e.Revision {
			if l.ctx.Err() == nil {
				w.c.fault("%s: got revision %d, and the log ends at %d", w.name, e.Revision, w.c.book.head())
			}
			return errDropped
		}
		return w.take(sctx, e)
	})
	switch {
	case muster.CodeOf(err) == muster.Compacted:
		w.judgeCompacted(l, err)
		w.cursor = nil
		w.compacted++
	case sctx.Err() != nil || errors.Is(err, errDropped), muster.CodeOf(err) == muster.Unavailable:
	default:
		w.c.fault("%s: the stream ended with %v", w.name, err)
	}
}

// specOf is what the registry's own subscription asks the hub for.
func specOf(ctx context.Context, r *registry.Registry, f *muster.InstanceFilter) (watch.Spec, error) {
	stream := watch.NewStream()
	if _, err := r.WatchInstances(watch.WithStream(ctx, stream), f, watch.Request{}); err != nil {
		return watch.Spec{}, err
	}
	spec, _ := stream.Spec()
	return spec, nil
}

// judgeCompacted judges that a cursor was refused because it has fallen off the log.
func (w *watcher) judgeCompacted(l *life, err error) {
	if floor := l.hub.Oldest().Revision; w.cursor == nil || w.cursor.Revision >= floor {
		w.c.fault("%s: told %v at %v with the log's floor at %d", w.name, err, w.cursor, floor)
	}
}

// take takes an event.
func (w *watcher) take(ctx context.Context, e *muster.Event) error {
	w.events++
	switch e.Type {
	case muster.EventPresent:
		w.objects[e.ObjectID] = encoded(e.Instance)
		if w.cursor != nil || e.Resume != nil {
			w.c.fault("%s: PRESENT after it had a place", w.name)
		}
	case muster.EventSynced:
		if w.synced {
			w.c.fault("%s: SYNCED again", w.name)
		}
		w.synced = true
		w.skip(e)
		w.judgeState(e.Revision)
	case muster.EventProgress:
		w.skip(e)
	case muster.EventChange:
		w.change(e)
	}
	if e.Resume != nil {
		w.cursor = e.Resume
	}
	if w.lazy && w.dice.chance(0.2) {
		sleep(ctx, w.dice.span(0, 30*time.Second))
	}
	if w.dice.chance(0.02) {
		return errDropped
	}
	return nil
}

// skip judges that nothing lies between the last place and this one.
func (w *watcher) skip(e *muster.Event) {
	if w.cursor == nil {
		return
	}
	if due := w.due(); due != nil && due.Revision <= e.Revision {
		w.c.fault("%s: %s at %d, and revision %d was never delivered", w.name, e.Type, e.Revision, due.Revision)
	}
}

// change judges that this is the next one.
func (w *watcher) change(e *muster.Event) {
	due := w.due()
	if due == nil || due.Revision != e.Revision || due.Batch != e.Batch || due.Object != encoded(e.Instance) {
		w.c.fault("%s: got %d after %v, due is %+v", w.name, e.Revision, w.cursor, due)
	}
	if w.objects[e.ObjectID] = encoded(e.Instance); e.Left || e.Deleted {
		delete(w.objects, e.ObjectID)
	}
}

// due is the first row of the log after the watcher's place that is for it.
func (w *watcher) due() *muster.Change {
	for _, row := range w.c.book.since(w.cursor.Revision) {
		if row.Kind != muster.KindInstance {
			continue
		}
		if w.wants(row.Instance) && !row.Deleted {
			return row
		}
		before := *row.Instance
		before.Status = muster.InstanceStatus(row.PreviousStatus)
		if row.PreviousRevision > 0 && w.wants(&before) {
			return row
		}
	}
	return nil
}

func (w *watcher) wants(i *muster.Instance) bool { return w.filter.Matches(i) }

// judgeState judges that what was delivered makes up the state at a revision.
func (w *watcher) judgeState(revision int64) {
	want := map[string]string{}
	for id, text := range w.c.book.objects(revision) {
		var i muster.Instance
		if err := json.Unmarshal([]byte(text), &i); err == nil && i.ID != "" && string(i.ID) == id && w.wants(&i) && isInstance(id) {
			want[id] = text
		}
	}
	if !maps.Equal(want, w.objects) {
		w.c.fault("%s: at revision %d it has\n%v\nand the log says\n%v", w.name, revision, w.objects, want)
	}
}

func isInstance(id string) bool { _, ok := muster.InstanceID(id).Number(); return ok }

func encoded(object any) string {
	b, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(b)
}
