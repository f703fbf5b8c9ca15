package watch_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// odd lets the changes of n1 and n3 through, and says of n3 that it left.
func odd(c *muster.Change) (deliver, left bool) {
	return c.ObjectID == "n1" || c.ObjectID == "n3", c.ObjectID == "n3"
}

func TestFollower_BeginsWhereItWasAsked(t *testing.T) {
	snapshot := func() (muster.Position, func() (*muster.Change, bool)) {
		left := []*muster.Change{{ObjectID: "n1"}, {ObjectID: "n2"}}
		return cursorAt(4).Position, func() (*muster.Change, bool) {
			if len(left) == 0 {
				return nil, false
			}
			c := left[0]
			left = left[1:]
			return c, true
		}
	}
	for _, tc := range []struct {
		name    string
		spec    watch.Spec
		request watch.Request
		want    string // with 6 changes before, and 2 after
	}{
		{"present state, then what is newer than it", watch.Spec{Match: all, Snapshot: snapshot}, watch.Request{Initial: true}, " Pn1 Pn2 S4 5 6 | 7 8"},
		{"now", watch.Spec{Match: all, Snapshot: snapshot}, watch.Request{}, " S6 | 7 8"},
		{"after a cursor", watch.Spec{Match: all, Snapshot: snapshot}, watch.Request{Since: cursorAt(3), Initial: true}, " 4 5 6 S6 | 7 8"},
		{"after the beginning", watch.Spec{Match: all}, watch.Request{Since: cursorAt(0)}, " 1 2 3 4 5 6 S6 | 7 8"},
		{"after the newest", watch.Spec{Match: all}, watch.Request{Since: cursorAt(6)}, " S6 | 7 8"},
		{"present state without a snapshot", watch.Spec{Match: all}, watch.Request{Initial: true}, " S6 | 7 8"},
		{"filtered", watch.Spec{Match: odd}, watch.Request{Since: cursorAt(0)}, " 1 3! 6 S6 | 8!"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &memory{}
			h := newHub(m, watch.Options{})
			h.Publish(m.write(t, 6))
			f, err := h.Scan(tc.spec).Follow(t.Context(), tc.request)
			if err != nil {
				t.Fatal(err)
			}
			got := short(drain(t, f)) + " |"
			h.Publish(m.write(t, 2))
			if got += short(drain(t, f)); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestFollower_TakesFromTheLogWhatTheRingHasLost(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{RingSize: 8, Blocks: 1})
	scan := h.Scan(watch.Spec{Match: odd})
	f, err := scan.Follow(t.Context(), watch.Request{})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, f)
	for range 100 {
		h.Publish(m.write(t, 7))
	}
	items := drain(t, f)
	if len(items) != 280 { // two of five
		t.Fatalf("%d items instead of 280", len(items))
	}
	fromRing := 0
	for i, item := range items {
		if i > 0 && item.Change.Revision <= items[i-1].Change.Revision {
			t.Fatalf("%d after %d", item.Change.Revision, items[i-1].Change.Revision)
		}
		if item.Change.Node == nil || item.Change.Node.Revision != item.Change.Revision || item.Epoch != epoch {
			t.Fatalf("change %d is not whole: %+v", item.Change.Revision, item.Change)
		}
		if item.Source == watch.FromRing {
			fromRing++
		}
	}
	if fromRing == 0 || fromRing > 8 {
		t.Errorf("%d items came from a ring of 8", fromRing)
	}
	if m.reads > 4 {
		t.Errorf("%d reads of the log for 3 blocks", m.reads)
	}
}

func TestScan_WorksOutEachChangeOnceForAll(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{})
	h.Publish(m.write(t, 50))
	asked := 0
	scan := h.Scan(watch.Spec{Match: func(*muster.Change) (bool, bool) { asked++; return true, false }})
	var followers []*watch.Follower
	for i := range int64(40) {
		f, err := scan.Follow(t.Context(), watch.Request{Since: cursorAt(50 - i)})
		if err != nil {
			t.Fatal(err)
		}
		followers = append(followers, f)
	}
	h.Publish(m.write(t, 10))
	for i, f := range followers {
		if got := len(drain(t, f)); got != i+11 {
			t.Errorf("follower %d got %d items, want %d", i, got, i+11)
		}
	}
	if asked != 39+10 {
		t.Errorf("the filter was asked %d times about 49 changes", asked)
	}
}

func TestFollower_Compacted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		cursor func() *muster.Cursor
		after  func(*watch.Hub, *memory) // nil: already at the begin
	}{
		{"another epoch", func() *muster.Cursor { c := cursorAt(5); c.Epoch = "00000000000000bb"; return c }, nil},
		{"below the floor", func() *muster.Cursor { return cursorAt(2) }, nil},
		{"above the head", func() *muster.Cursor { return cursorAt(21) }, nil},
		{"another batch wrote it, in the ring", func() *muster.Cursor { c := cursorAt(19); c.Tag = cursorAt(5).Tag; return c }, nil},
		{"another batch wrote it, in the log", func() *muster.Cursor { c := cursorAt(6); c.Tag = cursorAt(5).Tag; return c }, nil},
		{"compacted while it was away", func() *muster.Cursor { return cursorAt(5) }, func(h *watch.Hub, m *memory) { h.SetFloor(m.compact(9)) }},
		{"the database was restored", func() *muster.Cursor { return cursorAt(5) }, func(h *watch.Hub, _ *memory) {
			h.Reset("00000000000000cc", cursorAt(30).Position, muster.Position{})
		}},
		{"the database went back", func() *muster.Cursor { return cursorAt(5) }, func(h *watch.Hub, _ *memory) {
			h.Reset(epoch, cursorAt(10).Position, muster.Position{})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &memory{}
			h := newHub(m, watch.Options{RingSize: 4})
			h.Publish(m.write(t, 20))
			h.SetFloor(m.compact(3))
			f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{Since: tc.cursor()})
			if tc.after != nil {
				if err != nil {
					t.Fatal(err)
				}
				tc.after(h, m)
				_, err = f.Next(time.Now())
			}
			e, ok := errors.AsType[*muster.Error](err)
			if !ok || e.Code != muster.Compacted {
				t.Fatalf("got %v", err)
			}
			if e.Details["oldest"] != h.Oldest().String() || !strings.Contains(e.Message, "list again") {
				t.Errorf("it does not say how to go on: %q %v", e.Message, e.Details)
			}
		})
	}
}

// TestFollower_TheLogIsCompactedWhileItIsRead: who is above the new floor goes on,
// though the block that it shares with others begins below it.
func TestFollower_TheLogIsCompactedWhileItIsRead(t *testing.T) {
	for _, tc := range []struct {
		name         string
		since, floor int64
		code         muster.Code
	}{
		{"above the new floor, in the first block", 15, 10, ""},
		{"at the new floor, in the first block", 10, 10, ""},
		{"below the new floor, in the first block", 9, 10, muster.Compacted},
		{"from the begin, in the first block", 0, 10, muster.Compacted},
		{"above the new floor, in a later block", 275, 270, ""},
		{"below the new floor, in a later block", 265, 270, muster.Compacted},
		{"below the new floor, in a block that is gone", 15, 270, muster.Compacted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := &memory{}
			h := newHub(m, watch.Options{RingSize: 1})
			h.Publish(m.write(t, 280))
			f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{Since: cursorAt(tc.since)})
			if err != nil {
				t.Fatal(err)
			}
			m.begin = func() {
				m.begin = nil
				floor := cursorAt(tc.floor).Position
				h.SetFloor(floor)
				m.compact(floor.Revision)
			}
			if tc.code == "" {
				if got, want := len(drain(t, f)), int(280-tc.since)+1; got != want {
					t.Errorf("%d items, want %d", got, want)
				}
				return
			}
			for err == nil || errors.Is(err, watch.ErrBehind) {
				if _, err = f.Next(time.Now()); errors.Is(err, watch.ErrBehind) {
					if err := f.Load(t.Context()); err != nil {
						wantCompacted(t, err)
						return
					}
				}
			}
			wantCompacted(t, err)
		})
	}
}

func wantCompacted(t *testing.T, err error) {
	t.Helper()
	if muster.CodeOf(err) != muster.Compacted {
		t.Errorf("got %v", err)
	}
}

func TestHub_SetFloor_OnlyRises(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{})
	h.Publish(m.write(t, 20))
	h.SetFloor(cursorAt(9).Position)
	h.SetFloor(cursorAt(5).Position)
	h.Reset(epoch, cursorAt(20).Position, cursorAt(5).Position) // read before it rose
	if got := h.Oldest(); got != *cursorAt(9) {
		t.Errorf("the oldest is %+v", got)
	}
	h.Reset(epoch, cursorAt(8).Position, cursorAt(5).Position) // another history
	if got := h.Oldest(); got != *cursorAt(5) {
		t.Errorf("the oldest of another history is %+v", got)
	}
}

func TestHub_Reset_GoesOnInTheSameHistory(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{})
	h.Publish(m.write(t, 5))
	f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{})
	if err != nil {
		t.Fatal(err)
	}
	drain(t, f)
	missed := m.write(t, 3)
	h.Reset(epoch, cursorAt(8).Position, muster.Position{})
	h.Publish(missed) // once more: ignored
	h.Publish(m.write(t, 1))
	if got := short(drain(t, f)); got != " 6 7 8 9" {
		t.Errorf("got %s", got)
	}
}

func TestHub_Publish_AfterAGap(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{})
	f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{})
	if err != nil {
		t.Fatal(err)
	}
	h.Publish(m.write(t, 2))
	m.write(t, 2)
	h.Publish(m.write(t, 2))
	if got := short(drain(t, f)); got != " S0 1 2 3 4 5 6" {
		t.Errorf("got %s", got)
	}
}

func TestFollower_ACursorThatIsAboutToBeAnnounced(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{})
	h.Publish(m.write(t, 2))
	durable := m.write(t, 2)
	f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{Since: cursorAt(3)})
	if err != nil {
		t.Fatal(err)
	}
	got := short(drain(t, f)) + " |"
	h.Publish(durable)
	if got += short(drain(t, f)); got != " S3 | 4" {
		t.Errorf("got %s", got)
	}
}

func TestFollower_LogCannotBeRead(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{RingSize: 1})
	f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{})
	if err != nil {
		t.Fatal(err)
	}
	h.Publish(m.write(t, 3))
	m.fails = true
	if _, err := f.Next(time.Now()); err != nil { // SYNCED
		t.Fatal(err)
	}
	if _, err := f.Next(time.Now()); !errors.Is(err, watch.ErrBehind) {
		t.Fatalf("got %v", err)
	}
	if err := f.Load(t.Context()); muster.CodeOf(err) != muster.Unavailable || !errors.Is(err, errDisk) {
		t.Fatalf("got %v", err)
	}
	m.fails = false
	if got := short(drain(t, f)); got != " 1 2 3" {
		t.Errorf("afterwards %s", got)
	}
}

func TestHub_After(t *testing.T) {
	m := &memory{}
	h := newHub(m, watch.Options{RingSize: 4})
	h.Publish(m.write(t, 10))
	h.SetFloor(m.compact(2))
	for _, tc := range []struct {
		name         string
		after, first int64
		limit, count int
		source       watch.Source
		code         muster.Code
	}{
		{"from the ring", 7, 8, 100, 3, watch.FromRing, ""},
		{"from the log", 3, 4, 5, 5, watch.FromLog, ""},
		{"across both", 5, 6, 100, 5, watch.FromLog, ""},
		{"at the head", 10, 0, 100, 0, watch.FromRing, ""},
		{"below the floor", 1, 0, 100, 0, "", muster.Compacted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, source, err := h.After(t.Context(), tc.after, tc.limit)
			if muster.CodeOf(err) != tc.code || source != tc.source || len(got) != tc.count {
				t.Fatalf("%d changes from %q, %v", len(got), source, err)
			}
			if tc.count > 0 && got[0].Revision != tc.first {
				t.Errorf("the first is %d", got[0].Revision)
			}
		})
	}
}

func TestHub_CatchUpsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{hold: make(chan struct{})}
		h := newHub(m, watch.Options{RingSize: 1, CatchUps: 2})
		h.Publish(m.write(t, 2560))
		var wait sync.WaitGroup
		for i := range int64(10) {
			for range 3 {
				f, err := h.Scan(watch.Spec{Match: all}).Follow(t.Context(), watch.Request{Since: cursorAt(i * 256)})
				if err != nil {
					t.Fatal(err)
				}
				wait.Go(func() {
					if err := f.Load(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		synctest.Wait()
		close(m.hold)
		wait.Wait()
		if m.most != 2 || m.reads != 10 {
			t.Errorf("%d reads, %d at the same time, for 30 followers of 10 blocks", m.reads, m.most)
		}
	})
}

func TestHub_Serve_SaysProgressWhenQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		h := newHub(m, watch.Options{})
		h.Publish(m.write(t, 7))
		ctx, cancel := context.WithCancel(t.Context())
		events, err := h.Serve(ctx, watch.Spec{Match: odd}, watch.Request{})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		next := func(kind muster.EventType, revision int64, after time.Duration) {
			t.Helper()
			e := <-events
			if e.Type != kind || e.Revision != revision || *e.Resume != *cursorAt(revision) || time.Since(begin) != after {
				t.Fatalf("got %s at %d after %s, %+v", e.Type, e.Revision, time.Since(begin), e.Resume)
			}
		}
		next(muster.EventSynced, 7, 0)
		next(muster.EventProgress, 7, time.Minute)
		time.Sleep(30 * time.Second) // of the bubble's own time
		h.Publish(m.write(t, 2))     // 8 is n3, 9 is not let through
		next(muster.EventChange, 8, 90*time.Second)
		next(muster.EventProgress, 9, 150*time.Second)
		cancel()
		if _, open := <-events; open {
			t.Error("the channel is open after the end")
		}
	})
}

func TestHub_Serve_HandsOverToAStream(t *testing.T) {
	h := newHub(&memory{}, watch.Options{})
	s := watch.NewStream()
	if _, ok := s.Spec(); ok {
		t.Fatal("a new stream has a spec")
	}
	events, err := h.Serve(watch.WithStream(t.Context(), s), watch.Spec{Match: odd}, watch.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if spec, ok := s.Spec(); !ok || spec.Match == nil {
		t.Fatal("the spec was not handed over")
	}
	s.Feed(&muster.Event{Type: muster.EventSynced})
	if e := <-events; e.Type != muster.EventSynced {
		t.Errorf("got %v", e)
	}
	if _, err := h.Serve(watch.WithStream(t.Context(), s), watch.Spec{Match: odd}, watch.Request{}); err == nil {
		t.Error("a second subscription in one stream was let through")
	}
}
