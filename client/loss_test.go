package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func TestWatch_TellsCloseCodesApart(t *testing.T) {
	final := map[int]muster.Code{
		1002: muster.Internal, 1003: muster.Internal, 1007: muster.Internal, 1008: muster.Internal, 1009: muster.Internal,
		1010: muster.Internal, 1011: muster.Internal,
		4400: muster.Internal, 4401: muster.Unauthenticated, 4403: muster.Forbidden,
		4406: muster.Internal, 4409: muster.Internal, 4429: muster.Internal, 4500: muster.Internal,
	}
	passing := []int{1000, 1001, 1005, 1012, 1013, 1014, 3000, 4000, 4408, 4999}
	watch := func(t *testing.T, code int) (dials int, err error) {
		stage, c := newStage(t,
			opened(func(p *peer) { p.closeWith(code) }),
			opened(func(p *peer) { p.event("SYNCED", 1); p.drain() }),
		)
		var got []string
		err = c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got))
		return len(stage.dialled()), err
	}
	for code, want := range final {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if dials, err := watch(t, code); muster.CodeOf(err) != want || dials != 1 {
					t.Errorf("after %d dials: %v (%s), want %s after one", dials, err, muster.CodeOf(err), want)
				}
			})
		})
	}
	for _, code := range passing {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if dials, err := watch(t, code); !errors.Is(err, errEnough) || dials != 2 {
					t.Errorf("after %d dials: %v, want another connection", dials, err)
				}
			})
		})
	}
}

func TestWatch_TellsRefusedConnectionsApart(t *testing.T) {
	cases := map[int]muster.Code{
		400: muster.Invalid, 401: muster.Unauthenticated, 403: muster.Forbidden, 404: muster.Invalid, 421: muster.Invalid, 426: muster.Invalid,
		408: "", 429: "", 500: "", 502: "", 503: "",
	}
	for code, want := range cases {
		t.Run(http.StatusText(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stage, c := newStage(t, status(code), opened(func(p *peer) { p.event("SYNCED", 1); p.drain() }))
				var got []string
				err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got))
				dials := len(stage.dialled())
				if want == "" && (!errors.Is(err, errEnough) || dials != 2) {
					t.Errorf("after %d dials: %v, want another connection", dials, err)
				}
				if want != "" && (muster.CodeOf(err) != want || dials != 1) {
					t.Errorf("after %d dials: %v (%s), want %s after one", dials, err, muster.CodeOf(err), want)
				}
			})
		})
	}
}

// What the server says of a refusal is what its client says.
func TestWatch_SaysWhyItWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const why = "the key v has the role VIEWER; this needs OPERATOR"
		_, c := newStage(t, func(p *peer) {
			p.w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(p.w, `{"errors":[{"message":%q,"extensions":{"code":"FORBIDDEN"}}]}`, why)
		})
		err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, func(client.Event) error { return nil })
		if muster.CodeOf(err) != muster.Forbidden || err.Error() != why {
			t.Errorf("%v (%s)", err, muster.CodeOf(err))
		}
	})
}

func TestWatch_TellsErrorsOfTheStreamApart(t *testing.T) {
	for _, code := range muster.Codes() {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, c := newStage(t,
					opened(func(p *peer) { p.fail(string(code)); p.drain() }),
					opened(func(p *peer) { p.event("SYNCED", 1); p.drain() }),
				)
				var got []string
				err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got))
				if code == muster.Unavailable {
					if !errors.Is(err, errEnough) {
						t.Errorf("got %v, want another connection", err)
					}
				} else if muster.CodeOf(err) != code || len(got) != 0 {
					t.Errorf("got %v after %v", err, got)
				}
			})
		})
	}
}

func TestWatch_EndsWhenTheOtherSideIsNotMuster(t *testing.T) {
	acts := map[string]func(*peer){
		"garbage":          opened(func(p *peer) { p.say("garbage"); p.drain() }),
		"unknown type":     opened(func(p *peer) { p.say(`{"id":"1","type":"data"}`); p.drain() }),
		"another id":       opened(func(p *peer) { p.say(`{"id":"7","type":"next"}`); p.drain() }),
		"no data":          opened(func(p *peer) { p.say(`{"id":"1","type":"next","payload":{"data":null}}`); p.drain() }),
		"data of no shape": opened(func(p *peer) { p.say(`{"id":"1","type":"next","payload":{"data":{"x":7}}}`); p.drain() }),
		"error of no list": opened(func(p *peer) { p.say(`{"id":"1","type":"error","payload":7}`); p.drain() }),
		"binary": opened(func(p *peer) {
			_ = p.conn.WriteMessage(websocket.BinaryMessage, []byte(`{"type":"ping"}`))
			p.drain()
		}),
		"event before the ack": func(p *peer) { p.upgrade(); p.expect("connection_init"); p.event("SYNCED", 1); p.drain() },
		"no subprotocol": func(p *peer) {
			conn, err := new(websocket.Upgrader).Upgrade(p.w, p.r, nil)
			if err != nil {
				p.t.Error(err)
				return
			}
			p.conn = conn
			p.drain()
		},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stage, c := newStage(t, act)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := c.WatchHealth(ctx, nil, client.WatchOptions{}, func(client.Event) error { return nil })
				own, ok := errors.AsType[*muster.Error](err)
				if !ok || own.Code != muster.Internal && own.Code != muster.Invalid || len(stage.dialled()) != 1 {
					t.Errorf("after %d dials: %v", len(stage.dialled()), err)
				}
			})
		})
	}
}

func TestWatch_NeverSpins(t *testing.T) {
	acts := map[string]func(*peer){
		"refused":            status(503),
		"closed at once":     func(p *peer) { p.upgrade(); _ = p.conn.Close() },
		"closed after ack":   opened(func(p *peer) { p.closeWith(1013) }),
		"same cursor always": opened(func(p *peer) { p.event("SYNCED", 7); p.closeWith(1012) }),
		"completed":          opened(func(p *peer) { p.say(`{"id":"1","type":"complete"}`); p.drain() }),
		"unavailable":        opened(func(p *peer) { p.fail("UNAVAILABLE"); p.drain() }),
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stage, c := newStage(t, act)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				told := 0
				o := client.WatchOptions{Since: "c7", OnDisconnect: func(error, time.Duration) { told++ }}
				err := c.WatchHealth(ctx, nil, o, func(client.Event) error { return nil })
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it ended with %v", err)
				}
				dials := stage.dialled()
				// Pauses reach 15 s, half to one and a half times that: 600 s hold 27 to 80 of them, and a few short ones first.
				if len(dials) < 27 || len(dials) > 90 || told != len(dials) {
					t.Errorf("%d dials in ten minutes, told of %d losses", len(dials), told)
				}
				for k := 1; k < len(dials); k++ {
					if gap := dials[k].Sub(dials[k-1]); gap < 125*time.Millisecond {
						t.Errorf("dial %d came %s after the one before", k+1, gap)
					}
				}
			})
		})
	}
}

func TestWatch_PausesBeginSmallAgainAfterProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		acts := slices.Repeat([]func(*peer){status(503)}, 12)
		acts = append(acts,
			opened(func(p *peer) { p.event("CHANGE", 1); p.closeWith(1001) }),
			opened(func(p *peer) { p.event("CHANGE", 2); p.drain() }),
		)
		_, c := newStage(t, acts...)
		var pauses []time.Duration
		var got []string
		o := client.WatchOptions{Since: "c0", OnDisconnect: func(_ error, pause time.Duration) { pauses = append(pauses, pause) }}
		if err := c.WatchHealth(t.Context(), nil, o, until(2, &got)); !errors.Is(err, errEnough) {
			t.Fatal(err)
		}
		if len(pauses) != 13 || pauses[11] < 7*time.Second || pauses[12] > 375*time.Millisecond {
			t.Errorf("the pauses were %v", pauses)
		}
	})
}

func TestWatch_StaysOnAQuietConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stage, c := newStage(t, opened(func(p *peer) {
			pongs := 0
			p.conn.SetPongHandler(func(string) error { pongs++; return nil })
			gone := make(chan struct{})
			go func() { defer close(gone); p.drain() }()
			for range 30 { // ten minutes
				time.Sleep(20 * time.Second)
				_ = p.conn.WriteControl(websocket.PingMessage, []byte("x"), time.Now().Add(time.Second))
			}
			p.event("PROGRESS", 9)
			<-gone
			if pongs != 30 {
				p.t.Errorf("%d pings were answered, want 30", pongs)
			}
		}))
		var got []string
		err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got))
		if !errors.Is(err, errEnough) || len(stage.dialled()) != 1 {
			t.Errorf("after %d dials: %v", len(stage.dialled()), err)
		}
	})
}

func TestWatch_LeavesASilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stage, c := newStage(t, opened((*peer).drain), opened(func(p *peer) { p.event("SYNCED", 1); p.drain() }))
		var got []string
		if err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got)); !errors.Is(err, errEnough) {
			t.Fatal(err)
		}
		dials := stage.dialled()
		if len(dials) != 2 || dials[1].Sub(dials[0]) < 50*time.Second || dials[1].Sub(dials[0]) > 51*time.Second {
			t.Errorf("it dialled at %v", dials)
		}
	})
}

func TestWatch_WaitsForTheAcknowledgementOnlySoLong(t *testing.T) {
	slow := func(wait time.Duration) func(*peer) {
		return func(p *peer) {
			p.upgrade()
			p.expect("connection_init")
			for range wait / time.Second { // pings are no acknowledgement
				time.Sleep(time.Second)
				p.say(`{"type":"ping"}`)
				if p.read() == nil {
					return
				}
			}
			p.say(`{"type":"connection_ack"}`)
			p.expect("subscribe")
			p.event("SYNCED", 1)
			p.drain()
		}
	}
	for wait, want := range map[time.Duration]int{9 * time.Second: 1, 11 * time.Second: 2} {
		t.Run(wait.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stage, c := newStage(t, slow(wait), slow(0))
				var got []string
				err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, until(1, &got))
				if dials := len(stage.dialled()); !errors.Is(err, errEnough) || dials != want {
					t.Errorf("after %d dials: %v, want %d", dials, err, want)
				}
			})
		})
	}
}
