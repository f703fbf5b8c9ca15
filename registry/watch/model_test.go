package watch_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// TestFollower_NoGapNoDuplicate lets a watcher disconnect and resume at any point,
// while changes are written, the ring turns over, memory is loaded again, and the
// log is compacted behind it. What it got has to be the log.
func TestFollower_NoGapNoDuplicate(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &memory{}
		h := newHub(m, watch.Options{RingSize: rapid.IntRange(1, 40).Draw(r, "ring"), Blocks: rapid.IntRange(1, 3).Draw(r, "blocks")})
		scan := h.Scan(watch.Spec{Match: odd})
		f, err := scan.Follow(t.Context(), watch.Request{Since: cursorAt(0)})
		if err != nil {
			r.Fatal(err)
		}
		var got []int64
		last := *cursorAt(0)
		take := func(most int) {
			for range most {
				item, err := f.Next(time.Now())
				if errors.Is(err, watch.ErrBehind) {
					err = f.Load(t.Context())
				}
				if err != nil {
					r.Fatal(err)
				}
				if item.Type == muster.EventChange {
					got = append(got, item.Change.Revision)
				}
				if item.Type != "" {
					last = *item.Event(time.Now()).Resume
				}
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"write":  func(r *rapid.T) { h.Publish(m.write(t, rapid.IntRange(1, 300).Draw(r, "count"))) },
			"unsaid": func(*rapid.T) { m.write(t, 3) },
			"read":   func(r *rapid.T) { take(rapid.IntRange(1, 60).Draw(r, "count")) },
			"resume": func(*rapid.T) {
				if f, err = scan.Follow(t.Context(), watch.Request{Since: &last}); err != nil {
					r.Fatal(err)
				}
			},
			"reload": func(*rapid.T) {
				h.Reset(epoch, cursorAt(int64(len(m.rows))).Position, muster.Position{Revision: m.floor, Tag: cursorAt(m.floor).Tag})
			},
			"compact": func(*rapid.T) {
				if last.Revision > 0 {
					h.SetFloor(m.compact(last.Revision))
				}
			},
		})
		h.Reset(epoch, cursorAt(int64(len(m.rows))).Position, muster.Position{Revision: m.floor, Tag: cursorAt(m.floor).Tag})
		take(2*len(m.rows) + 10)
		i := 0
		for _, row := range m.rows {
			if deliver, _ := odd(&row); !deliver {
				continue
			}
			if i >= len(got) || got[i] != row.Revision {
				r.Fatalf("item %d: revision %d is missing or twice", i, row.Revision)
			}
			i++
		}
		if i != len(got) {
			r.Fatalf("%d items too many", len(got)-i)
		}
	})
}

// TestHub_ManyAtOnce is for the race detector: publishers, compaction and
// followers that share a scan, from the ring and from the log.
func TestHub_ManyAtOnce(t *testing.T) {
	const total, step = 4000, 20
	m := &memory{}
	h := newHub(m, watch.Options{RingSize: 64})
	scan := h.Scan(watch.Spec{Match: all})
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			next := int64(1)
			done := errors.New("done")
			err := h.Follow(t.Context(), watch.Spec{Match: all}, watch.Request{Since: cursorAt(0)}, func(e *muster.Event) error {
				if e.Type != muster.EventChange {
					return nil
				}
				if e.Revision != next {
					t.Errorf("got %d instead of %d", e.Revision, next)
				}
				if next++; next > total {
					return done
				}
				return nil
			})
			if !errors.Is(err, done) {
				t.Error(err)
			}
		})
		wait.Go(func() {
			f, err := scan.Follow(t.Context(), watch.Request{Since: cursorAt(0)})
			if err != nil {
				t.Error(err)
				return
			}
			seen := 0
			for seen < total {
				changed := h.Changed()
				items := drain(t, f)
				if len(items) == 0 {
					<-changed
				}
				for _, item := range items {
					if item.Type == muster.EventChange {
						seen++
					}
				}
			}
		})
	}
	for range total / step {
		h.Publish(m.write(t, step))
	}
	wait.Wait()
}
