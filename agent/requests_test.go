package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

// AgentRequests is a connection; the request with the id 0 is its end.
func (c *cloud) AgentRequests(ctx context.Context, uid muster.NodeUID, incarnation int64, each func(muster.AgentRequest)) error {
	c.mu.Lock()
	err := c.called("AgentRequests")
	if err == nil {
		err = c.knows(uid, incarnation)
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		select {
		case request := <-c.asks:
			if request.ID == 0 {
				return muster.Errorf(muster.Unavailable, "the connection is lost")
			}
			each(request)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *cloud) AnswerAgentRequest(_ context.Context, in muster.AgentAnswerInput) (bool, error) {
	c.answers <- in
	return true, in.Validate()
}

func (c *cloud) ask(id int64, r *muster.LogRequest) muster.AgentAnswerInput {
	c.asks <- muster.AgentRequest{ID: id, Log: r}
	return <-c.answers
}

func TestAgent_AnswersWhatItsRegistryAsks(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		speak := make(chan string)
		w.host.Program("speak", func(p *drivertest.Process) int {
			for {
				select {
				case words := <-speak:
					p.Print("%s", words)
				case <-p.Term:
					return 0
				case <-p.Killed:
					return 0
				}
			}
		})
		w.cloud.launch("speak")
		w.start()
		pass(time.Second)
		speak <- "one"
		synctest.Wait()
		const machine = "k3f9-i-1-1"
		a := w.cloud.ask(7, &muster.LogRequest{Machine: machine, Limit: 100})
		if a.ID != 7 || a.UID == "" || a.Incarnation != 1 || string(a.Data) != "one\n" || a.End != 4 || a.Ended || a.Code != nil {
			t.Errorf("answered %+v", a)
		}
		began := time.Now()
		time.AfterFunc(3*time.Second, func() { speak <- "two" })
		if a = w.cloud.ask(8, &muster.LogRequest{Machine: machine, Offset: 4, Limit: 100, Wait: true}); string(a.Data) != "two\n" || time.Since(began) > 4*time.Second {
			t.Errorf("what was waited for: %+v after %s", a, time.Since(began))
		}
		began = time.Now()
		if a = w.cloud.ask(9, &muster.LogRequest{Machine: machine, Offset: 8, Limit: 100, Wait: true}); len(a.Data) != 0 || time.Since(began) > 15*time.Second {
			t.Errorf("what does not come: %+v after %s", a, time.Since(began))
		}
		if a = w.cloud.ask(10, &muster.LogRequest{Machine: "k3f9-i-9-1", Limit: 100}); a.Code == nil || *a.Code != muster.NotFound {
			t.Errorf("a machine that is not: %+v", a)
		}
		if a = w.cloud.ask(11, nil); a.Code == nil || *a.Code != muster.Invalid {
			t.Errorf("what it does not know: %+v", a)
		}
	})
}

func TestAgent_ComesBackForRequests(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		pass(time.Minute)
		if n := len(w.cloud.times("AgentRequests")); n != 1 {
			t.Fatalf("it connected %d times", n)
		}
		w.cloud.asks <- muster.AgentRequest{} // lost after a minute: again at once
		synctest.Wait()
		if n := len(w.cloud.times("AgentRequests")); n != 2 {
			t.Fatalf("after a loss it had connected %d times", n)
		}
		w.cloud.with(func() {
			w.cloud.fail = func(call string) error {
				if call == "AgentRequests" {
					return errors.New("nobody listens")
				}
				return nil
			}
		})
		w.cloud.asks <- muster.AgentRequest{}
		pass(time.Minute)
		if n := len(w.cloud.times("AgentRequests")); n < 6 || n > 20 {
			t.Errorf("in a minute without an answer it had connected %d times", n)
		}
		w.cloud.with(func() { w.cloud.fail, w.cloud.known = nil, false }) // and it is forgotten
		pass(time.Minute)
		w.cloud.ask(1, nil)
	})
}

// An agent whose key is no longer good ends, and says what its beat is told: the end of a
// connection has no room for what to do.
func TestAgent_SaysWhyItIsDismissed(t *testing.T) {
	for name, c := range map[string]struct {
		beat error
		want string
	}{
		"its key was revoked":  {muster.Errorf(muster.Unauthenticated, "it was revoked: join anew"), "it was revoked: join anew"},
		"for another reason":   {nil, "farewell"},
		"and nobody says more": {errors.New("nobody listens"), "farewell"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				w.cloud.with(func() {
					w.cloud.fail = func(call string) error {
						switch call {
						case "AgentRequests":
							return muster.Errorf(muster.Forbidden, "farewell")
						case "Heartbeat":
							return c.beat
						}
						return nil
					}
				})
				r := w.start()
				pass(time.Second)
				select {
				case <-r.ended:
				default:
					t.Fatal("it goes on")
				}
				if muster.CodeOf(r.err) != muster.Forbidden || r.err.Error() != c.want {
					t.Errorf("it ended with %v, want FORBIDDEN, %s", r.err, c.want)
				}
			})
		})
	}
}

func TestAgent_TellsWhatIsUsed(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.cloud.launch()
		w.start()
		pass(time.Second)
		for k := range 12 { // a quarter of a core all the time; measured each 5 s
			w.host.SetUsage("k3f9-i-1-1", driver.Usage{CPU: time.Duration(k) * 1250 * time.Millisecond, Memory: 10<<20 + 1, MemoryPeak: 20 << 20})
			pass(5 * time.Second)
		}
		w.cloud.with(func() {
			u := w.cloud.beat.Usage
			if u == nil || len(u.Machines) != 1 || u.MemoryMB <= 0 {
				t.Fatalf("the last beat told %+v", u)
			}
			if m := u.Machines[0]; m.Machine != "k3f9-i-1-1" || m.CPUPercent != 25 || m.MemoryMB != 11 || m.MemoryPeakMB == nil || *m.MemoryPeakMB != 20 {
				t.Errorf("of the machine it told %+v", m)
			}
		})
	})
}
