package agent_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
)

func TestAgent_BeatsAsTheRegistrySays(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.cloud.interval = 4 * time.Second
		w.start()
		pass(10 * time.Minute)
		beats := w.cloud.times("Heartbeat")
		if len(beats) < 150 || len(beats) > 167 {
			t.Errorf("%d beats in ten minutes", len(beats))
		}
		for k := 1; k < len(beats); k++ {
			if gap := beats[k].Sub(beats[k-1]); gap > 4*time.Second || gap < 3600*time.Millisecond {
				t.Fatalf("beat %d came %s after the one before", k+1, gap)
			}
		}
		if calls := len(w.cloud.times("Assignments")) + len(w.cloud.times("ReportInstances")); calls > 3 {
			t.Errorf("an idle agent fetched and reported %d times", calls)
		}
	})
}

func TestAgent_GoesOnWhenTheRegistryWasAway(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		pass(15 * time.Second)
		w.cloud.with(func() { w.cloud.fail = unavailable("") })
		pass(10 * time.Minute)
		beats := w.cloud.times("Heartbeat")
		for k := 1; k < len(beats); k++ {
			if gap := beats[k].Sub(beats[k-1]); gap > 10*time.Second {
				t.Errorf("%s passed without a try", gap)
			}
		}
		if len(beats) > 80 {
			t.Errorf("%d tries in ten minutes", len(beats))
		}
		w.host.Exit("k3f9-i-1-1", 9, "") // nobody can be told
		pass(time.Minute)
		w.want(id, muster.Running)
		w.cloud.with(func() { w.cloud.fail = nil })
		pass(10 * time.Second)
		w.want(id, muster.Failed)
		if n := len(w.cloud.registrations()); n != 1 {
			t.Errorf("it registered %d times", n)
		}
		// Ten minutes of the same are not worth a line each try.
		said := w.log.String()
		if lost, over := strings.Count(said, "level=WARN"), strings.Count(said, `msg="the registry answers again"`); lost == 0 || lost > 5 || over == 0 || over > lost {
			t.Errorf("it logged %d warnings, and %d times that one is over", lost, over)
		}
	})
}

func TestAgent_RegistersAgainAtOnceWhenItIsUnknown(t *testing.T) {
	for _, call := range []string{"Heartbeat", "Assignments", "ReportInstances"} {
		t.Run(call, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				a := w.start()
				id := w.cloud.launch()
				pass(15 * time.Second)
				w.cloud.with(func() { w.cloud.known = false })
				switch call {
				case "Heartbeat":
					pass(10 * time.Second)
				case "Assignments":
					a.nudge(id, 99, 1)
				case "ReportInstances":
					w.host.Exit("k3f9-i-1-1", 0, "")
					synctest.Wait()
				}
				times := w.cloud.times(call)
				again := w.cloud.times("RegisterNode")
				if len(again) != 2 || !again[1].Equal(times[len(times)-1]) && call == "Heartbeat" {
					t.Errorf("it registered at %v and was told at %v", again, times)
				}
				in := w.cloud.registrations()[1]
				if in.Incarnation != 1 || *in.UID != "n-1" || len(in.Instances) != 1 || in.Epoch != "e1" || in.AppliedRevision != 2 {
					t.Errorf("it registered as %+v", in)
				}
				if w.host.Launches("k3f9-i-1-1") != 1 {
					t.Error("it launched again")
				}
			})
		})
	}
}

func TestAgent_EndsWhenItMust(t *testing.T) {
	for _, code := range []muster.Code{muster.Superseded, muster.DuplicateIdentity, muster.Forbidden} {
		for _, call := range []string{"RegisterNode", "Heartbeat", "Assignments", "ReportInstances"} {
			t.Run(string(code)+" from "+call, func(t *testing.T) {
				play(t, func(t *testing.T, w *world) {
					if call != "RegisterNode" {
						w.cloud.launch()
					}
					refuse := func() {
						w.cloud.fail = func(name string) error {
							if name == call {
								return muster.Errorf(code, "said the registry")
							}
							return nil
						}
					}
					if call == "RegisterNode" {
						refuse()
					}
					a := w.start()
					pass(15 * time.Second)
					w.cloud.with(refuse)
					w.host.SetImages("minimal", "new") // makes a report due
					a.nudge("i-1", 99, 1)              // and a fetch
					pass(15 * time.Second)
					select {
					case <-a.ended:
					default:
						t.Fatal("it goes on")
					}
					if muster.CodeOf(a.err) != code {
						t.Errorf("it ended with %v", a.err)
					}
					registrations := len(w.cloud.times("RegisterNode"))
					pass(time.Hour)
					if now := len(w.cloud.times("RegisterNode")); now != registrations || now != 1 {
						t.Errorf("it tried to register %d times", now)
					}
					if m := w.machine("k3f9-i-1-1"); call != "RegisterNode" && m.PID == 0 {
						t.Errorf("its machine ended with it: %+v", m)
					}
				})
			})
		}
	}
}

func TestAgent_EndsOnSettingsThatCannotBeOnlyAtFirst(t *testing.T) {
	for _, code := range []muster.Code{muster.Invalid, muster.AlreadyExists, muster.Unauthenticated} {
		t.Run(string(code), func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				refuse := func(name string) error {
					if name == "RegisterNode" {
						return muster.Errorf(code, "said the registry")
					}
					return nil
				}
				w.cloud.fail = refuse
				a := w.start()
				<-a.ended
				if muster.CodeOf(a.err) != code {
					t.Errorf("it ended with %v", a.err)
				}
				w.cloud.with(func() { w.cloud.fail = nil })
				a = w.start()
				pass(15 * time.Second)
				w.cloud.with(func() { w.cloud.fail, w.cloud.known = refuse, false })
				pass(time.Hour)
				w.cloud.with(func() { w.cloud.fail = nil })
				pass(10 * time.Second)
				select {
				case <-a.ended:
					t.Fatalf("it ended with %v", a.err)
				default:
				}
				if n := len(w.cloud.registrations()); n != 2 {
					t.Errorf("it registered %d times", n)
				}
			})
		})
	}
}

func TestAgent_TriesAgainSoon(t *testing.T) {
	for _, call := range []string{"Assignments", "ReportInstances", "RegisterNode"} {
		t.Run(call, func(t *testing.T) {
			play(t, func(t *testing.T, w *world) {
				failed := false
				w.cloud.fail = func(name string) error {
					if name != call || failed {
						return nil
					}
					failed = true
					return muster.Errorf(muster.Unavailable, "once")
				}
				id := w.cloud.launch()
				w.start()
				pass(time.Second)
				w.want(id, muster.Running)
				if !failed {
					t.Error("nothing failed")
				}
			})
		})
	}
}

func TestAgent_DoesNotSpinWhereItStaysUnknown(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.cloud.fail = func(name string) error {
			if name == "Assignments" || name == "ReportInstances" {
				return muster.Errorf(muster.UnknownNode, "who is that?")
			}
			return nil
		}
		w.start()
		pass(10 * time.Minute)
		if n := len(w.cloud.registrations()); n < 60 || n > 200 {
			t.Errorf("it registered %d times in ten minutes", n)
		}
	})
}
