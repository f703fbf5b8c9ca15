package render_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/render"
	"github.com/muster-cloud/muster/client"
)

// following runs a renderer in a bubble until the test is over.
func (k *kept) following() (stop func()) {
	k.t.Helper()
	k.source.events = make(chan client.Event)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r := k.renderer()
	go func() { ended <- r.Run(ctx, client.WatchOptions{}) }()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			k.t.Errorf("it ended with %v", err)
		}
	}
}

func registered(e *client.Entry) client.Event {
	return client.Event{Type: muster.EventChange, Registration: e, Cursor: "c"}
}

func removed(e *client.Entry) client.Event {
	return client.Event{Type: muster.EventChange, Registration: e, Left: true, Cursor: "c"}
}

// reloads counts what --reload left.
func (k *kept) reloads() int {
	text, _ := os.ReadFile(filepath.Join(k.dir, "marks"))
	return strings.Count(string(text), "\n")
}

func watched(t *testing.T) *kept {
	k := keep(t, line)
	k.target.Reload = "echo >>" + filepath.Join(k.dir, "marks")
	return k
}

func TestRun_FollowsAfterAQuietWindow(t *testing.T) {
	k := watched(t)
	synctest.Test(t, func(t *testing.T) {
		k.source.set(entries(3)...)
		defer k.following()()
		time.Sleep(render.DefaultQuiet + time.Millisecond)
		synctest.Wait()
		if k.reloads() != 1 || strings.Count(k.read(), "\n") != 3 {
			t.Fatalf("%d reloads, %s", k.reloads(), k.read())
		}
		k.source.events <- removed(entry(2))
		time.Sleep(render.DefaultQuiet - time.Millisecond)
		synctest.Wait()
		if k.reloads() != 1 {
			t.Error("it did not wait for the quiet window")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if k.reloads() != 2 || k.read() != "10.0.0.1:8080\n10.0.0.3:8080\n" {
			t.Errorf("%d reloads, %s", k.reloads(), k.read())
		}
	})
}

func TestRun_200ChangesInASecondAreOneReload(t *testing.T) {
	k := watched(t)
	synctest.Test(t, func(t *testing.T) {
		defer k.following()()
		time.Sleep(time.Second)
		for n := range 200 {
			k.source.events <- registered(entry(n + 1))
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(render.DefaultQuiet)
		synctest.Wait()
		if k.reloads() != 2 || strings.Count(k.read(), "\n") != 200 { // the first was the empty file
			t.Errorf("%d reloads, %d lines", k.reloads(), strings.Count(k.read(), "\n"))
		}
	})
}

// Changes that never pause are followed all the same, once in the longest delay.
func TestRun_WaitsNoLongerThanTheLongestDelay(t *testing.T) {
	k := watched(t)
	synctest.Test(t, func(t *testing.T) {
		defer k.following()()
		time.Sleep(time.Second)
		for n := range 1100 { // 11 s
			k.source.events <- registered(entry(n + 1))
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if got := k.reloads(); got != 3 {
			t.Errorf("%d reloads in 11 s of changes, want one at the beginning and one each 5 s", got)
		}
	})
}

func TestRun_TriesAgainWhatFailed(t *testing.T) {
	k := watched(t)
	closed := filepath.Join(k.dir, "closed")
	k.target.Check = "test ! -e " + closed
	synctest.Test(t, func(t *testing.T) {
		k.source.set(entries(1)...)
		defer k.following()()
		time.Sleep(time.Second)
		synctest.Wait()
		if err := os.WriteFile(closed, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		k.source.events <- registered(entry(2))
		time.Sleep(time.Minute)
		synctest.Wait()
		if k.reloads() != 1 || k.read() != "10.0.0.1:8080\n" {
			t.Fatalf("%d reloads, %s", k.reloads(), k.read())
		}
		if err := os.Remove(closed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if k.reloads() != 2 || k.read() != "10.0.0.1:8080\n10.0.0.2:8080\n" {
			t.Errorf("%d reloads, %s", k.reloads(), k.read())
		}
	})
}

func TestRun_GuardHoldsUntilEnoughAreBack(t *testing.T) {
	k := watched(t)
	synctest.Test(t, func(t *testing.T) {
		k.source.set(entries(4)...)
		defer k.following()()
		time.Sleep(time.Second)
		for n := range 4 {
			k.source.events <- removed(entry(n + 1))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if k.reloads() != 1 || strings.Count(k.read(), "\n") != 4 {
			t.Fatalf("%d reloads, %s", k.reloads(), k.read())
		}
		k.source.events <- registered(entry(7))
		k.source.events <- registered(entry(8))
		time.Sleep(time.Second)
		synctest.Wait()
		if k.reloads() != 2 || k.read() != "10.0.0.7:8080\n10.0.0.8:8080\n" {
			t.Errorf("%d reloads, %s", k.reloads(), k.read())
		}
	})
}

// A state that is told anew counts when it is whole: not one of its halves.
func TestRun_TakesAStateToldAnewAsAWhole(t *testing.T) {
	k := watched(t)
	k.target.AllowEmpty, k.target.MaxShrink = true, 100
	synctest.Test(t, func(t *testing.T) {
		k.source.set(entries(4)...)
		defer k.following()()
		time.Sleep(time.Second)
		k.source.events <- client.Event{Type: client.EventRestart}
		k.source.events <- client.Event{Type: muster.EventPresent, Registration: entry(1)}
		time.Sleep(time.Minute)
		k.source.events <- client.Event{Type: muster.EventPresent, Registration: entry(2)}
		k.source.events <- client.Event{Type: muster.EventSynced, Cursor: "c"}
		time.Sleep(time.Second)
		synctest.Wait()
		if k.reloads() != 2 || k.read() != "10.0.0.1:8080\n10.0.0.2:8080\n" {
			t.Errorf("%d reloads, %s", k.reloads(), k.read())
		}
	})
}

// What others write at the place of an entry of ours is no second server.
func TestRun_HasEachPlaceOnce(t *testing.T) {
	k := watched(t)
	k.target.AllowEmpty, k.target.MaxShrink = true, 100
	synctest.Test(t, func(t *testing.T) {
		k.source.set(entries(2)...)
		defer k.following()()
		time.Sleep(time.Second)
		twin := entry(1)
		twin.Key, twin.Own, twin.Origin = "@"+twin.Key, false, "another"
		k.source.events <- client.Event{Type: muster.EventPresent, Registration: twin}
		k.source.events <- client.Event{Type: muster.EventPresent, Registration: entry(3)}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := "10.0.0.1:8080\n10.0.0.2:8080\n10.0.0.3:8080\n"; k.read() != want {
			t.Errorf("got %s", k.read())
		}
	})
}

func TestRun_BeginsWhenTheAnswerIsComplete(t *testing.T) {
	k := watched(t)
	if err := os.WriteFile(k.path, []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		k.source.set(entries(1)...)
		k.source.setComplete(false)
		defer k.following()()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if k.read() != "before\n" {
			t.Fatal("it was rendered")
		}
		k.source.setComplete(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if k.read() != "10.0.0.1:8080\n" {
			t.Fatal(k.read())
		}
		k.source.setComplete(false) // later it takes nothing away
		k.source.events <- registered(entry(2))
		time.Sleep(time.Second)
		synctest.Wait()
		if k.read() != "10.0.0.1:8080\n10.0.0.2:8080\n" {
			t.Error(k.read())
		}
	})
}
