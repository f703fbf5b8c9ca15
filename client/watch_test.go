package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

var errEnough = errors.New("enough")

// until collects events as "TYPE revision" and ends the watch after some.

func until(n int, got *[]string) func(client.Event) error {
	return func(e client.Event) error {
		*got = append(*got, fmt.Sprint(e.Type, " ", e.Revision))
		if len(*got) == n {
			return errEnough
		}
		return nil
	}
}

func TestWatch_ResumesWithoutGapOrDuplicate(t *testing.T) {
	losses := map[string]func(*peer){
		"dropped":     func(p *peer) { _ = p.conn.UnderlyingConn().Close() },
		"going away":  func(p *peer) { p.closeWith(1001) },
		"try later":   func(p *peer) { p.closeWith(1013) },
		"init late":   func(p *peer) { p.closeWith(4408) },
		"complete":    func(p *peer) { p.say(`{"id":"1","type":"complete"}`); p.drain() },
		"unavailable": func(p *peer) { p.fail("UNAVAILABLE"); p.drain() },
		"silent":      func(p *peer) { p.drain() },
	}
	names := slices.Sorted(func(yield func(string) bool) {
		for name := range losses {
			if !yield(name) {
				return
			}
		}
	})
	const last = 40
	rapid.Check(t, func(rt *rapid.T) {
		ways := rapid.SliceOfN(rapid.SampledFrom(names), 1, 8).Draw(rt, "losses")
		lengths := rapid.SliceOfN(rapid.IntRange(0, 15), len(ways), len(ways)).Draw(rt, "events")
		synctest.Test(t, func(t *testing.T) {
			var acts []func(*peer)
			for k, way := range ways {
				acts = append(acts, opened(func(p *peer) {
					from := p.since()
					for n := range lengths[k] {
						p.event("CHANGE", from+n+1)
					}
					losses[way](p)
				}))
			}
			acts = append(acts, opened(func(p *peer) {
				for n := p.since() + 1; n <= last+200; n++ {
					p.event("CHANGE", n)
				}
				p.drain()
			}))
			_, c := newStage(t, acts...)
			var got []int64
			err := c.WatchHealth(t.Context(), nil, client.WatchOptions{Since: "c0"}, func(e client.Event) error {
				got = append(got, e.Revision)
				if e.Revision == last+100 {
					return errEnough
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				rt.Errorf("the watch ended with %v", err)
			}
			for k, revision := range got {
				if revision != int64(k+1) {
					rt.Errorf("event %d has revision %d", k+1, revision)
					break
				}
			}
			if len(got) != last+100 {
				rt.Errorf("%d events came, want %d", len(got), last+100)
			}
		})
	})
}

func TestWatch_AnswersPingsOfTheProtocol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newStage(t, func(p *peer) {
			p.upgrade()
			p.expect("connection_init")
			p.say(`{"type":"ping","payload":{"any":"thing"}}`) // also before the acknowledgement
			p.expect("pong")
			p.say(`{"type":"connection_ack","payload":{}}`)
			p.expect("subscribe")
			p.say(`{"type":"ping"}`)
			p.expect("pong")
			p.say(`{"type":"pong"}`)
			p.event("SYNCED", 1)
			p.drain()
		})
		var got []string
		if err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got)); !errors.Is(err, errEnough) {
			t.Error(err)
		}
	})
}

func TestWatch_BeginsThePresentStateAgainWhenItWasCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		keep := func(p *peer) { asked = append(asked, jsonOf(p.asks)) }
		_, c := newStage(t,
			opened(func(p *peer) { keep(p); p.event("PRESENT", 3); p.event("PRESENT", 4); p.closeWith(1001) }),
			opened(func(p *peer) { keep(p); p.closeWith(1001) }),
			opened(func(p *peer) {
				keep(p)
				p.event("PRESENT", 4)
				p.event("SYNCED", 6)
				p.event("CHANGE", 7)
				p.closeWith(1001)
			}),
			opened(func(p *peer) { keep(p); p.event("SYNCED", 8); p.drain() }),
		)
		var got []string
		if err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(7, &got)); !errors.Is(err, errEnough) {
			t.Error(err)
		}
		want := []string{"PRESENT 3", "PRESENT 4", "RESTART 0", "PRESENT 4", "SYNCED 6", "CHANGE 7", "SYNCED 8"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		fresh := `{"initial":true}`
		if diff := cmp.Diff([]string{fresh, fresh, fresh, `{"since":"c7"}`}, asked); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWatch_Compacted(t *testing.T) {
	play := func(t *testing.T, o client.WatchOptions, want ...string) error {
		t.Helper()
		_, c := newStage(t,
			opened(func(p *peer) { p.fail("COMPACTED"); p.drain() }),
			opened(func(p *peer) { p.event("PRESENT", 90); p.event("SYNCED", 99); p.drain() }),
		)
		var got []string
		err := c.WatchHealth(t.Context(), nil, o, until(3, &got))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		return err
	}
	t.Run("ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			if err := play(t, client.WatchOptions{Since: "c1"}); muster.CodeOf(err) != muster.Compacted {
				t.Errorf("got %v, want COMPACTED", err)
			}
		})
	})
	t.Run("starts over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			err := play(t, client.WatchOptions{Since: "c1", StartOver: true}, "RESTART 0", "PRESENT 90", "SYNCED 99")
			if !errors.Is(err, errEnough) {
				t.Errorf("it ended with %v", err)
			}
		})
	})
}

func TestWatch_DoesNotCountAnEventThatWasNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newStage(t, opened(func(p *peer) { p.event("CHANGE", p.since()+1); p.drain() }))
		mine := &muster.Error{Code: muster.Unavailable, Message: "mine"} // even one that looks like a loss
		err := c.WatchHealth(t.Context(), nil, client.WatchOptions{Since: "c4"}, func(client.Event) error { return mine })
		if err != error(mine) {
			t.Errorf("got %v, want the callback's own error", err)
		}
	})
}

func TestWatch_SaysGoodbyeWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		codes := make(chan int, 1)
		_, c := newStage(t, opened(func(p *peer) {
			p.event("SYNCED", 1)
			_, _, err := p.conn.ReadMessage()
			if end, ok := errors.AsType[*websocket.CloseError](err); ok {
				codes <- end.Code
			} else {
				codes <- 0
			}
		}))
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		connected := 0
		o := client.WatchOptions{OnConnect: func() { connected++ }}
		err := c.WatchHealth(ctx, nil, o, func(client.Event) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) || time.Since(began) > time.Second || connected != 1 {
			t.Errorf("after %s and %d connections: %v", time.Since(began), connected, err)
		}
		if code := <-codes; code != websocket.CloseNormalClosure {
			t.Errorf("it said goodbye with %d", code)
		}
	})
}

func TestWatch_EndsInEachStateWithItsContext(t *testing.T) {
	acts := map[string]func(*peer){
		"in the handshake":  func(p *peer) { <-p.r.Context().Done() },
		"before the ack":    func(p *peer) { p.upgrade(); p.drain() },
		"while it is quiet": opened((*peer).drain),
		"in a pause":        status(503),
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c := newStage(t, act)
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				began := time.Now()
				err := c.WatchHealth(ctx, nil, client.WatchOptions{}, func(client.Event) error { return nil })
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 4*time.Second {
					t.Errorf("after %s: %v", time.Since(began), err)
				}
			})
		})
	}
}

func TestWatch_AsksForWhatItsCallerWants(t *testing.T) {
	id, node := muster.InstanceID("i-1"), "a"
	watches := map[string]struct {
		watch func(context.Context, *client.Client, func(client.Event) error) error
		want  string
	}{
		"health": {func(ctx context.Context, c *client.Client, each func(client.Event) error) error {
			return c.WatchHealth(ctx, &muster.HealthFilter{InstanceID: &id}, client.WatchOptions{}, each)
		}, `{"filter":{"instanceId":"i-1"},"initial":true}`},
		"nodes from now": {func(ctx context.Context, c *client.Client, each func(client.Event) error) error {
			return c.WatchNodes(ctx, &muster.NodeFilter{Status: []muster.NodeStatus{muster.Healthy}}, client.WatchOptions{FromNow: true}, each)
		}, `{"filter":{"status":["HEALTHY"]},"initial":false}`},
		"instances since": {func(ctx context.Context, c *client.Client, each func(client.Event) error) error {
			return c.WatchInstances(ctx, &muster.InstanceFilter{NodeID: &node}, client.WatchOptions{Since: "c3"}, each)
		}, `{"filter":{"nodeId":"a"},"since":"c3"}`},
	}
	for name, w := range watches {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c := newStage(t, opened(func(p *peer) {
					if got := jsonOf(p.asks); got != w.want {
						p.t.Errorf("it asked for %s, want %s", got, w.want)
					}
					p.event("SYNCED", 1)
					p.drain()
				}))
				err := w.watch(t.Context(), c, func(e client.Event) error {
					if e.ObjectID != "n-1" || e.Kind != muster.KindNode || e.Cursor != "c1" || e.Node.ID != "a" {
						t.Errorf("the event was read as %+v", e)
					}
					return errEnough
				})
				if !errors.Is(err, errEnough) {
					t.Error(err)
				}
			})
		})
	}
}
