package agent_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
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

func TestAgent_ReportsAreTriedUntilTaken(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		id := w.cloud.launch()
		other := w.cloud.launch()
		pass(15 * time.Second)
		_, taken := w.cloud.report()
		w.cloud.with(func() { w.cloud.fail = unavailable("ReportInstances") })
		w.host.Exit("k3f9-i-1-1", 1, "")
		pass(time.Minute)
		w.host.Exit("k3f9-i-2-1", 0, "")
		pass(time.Minute)
		tries := w.cloud.times("ReportInstances")
		w.cloud.with(func() { w.cloud.fail = nil })
		pass(10 * time.Second)
		w.want(id, muster.Failed)
		w.want(other, muster.Stopped)
		newest, n := w.cloud.report()
		if n != taken+1 {
			t.Errorf("%d reports were taken after the registry was back, want the newest one only", n-taken)
		}
		if len(tries) < 12 || len(tries) > 60 {
			t.Errorf("%d tries in two minutes", len(tries))
		}
		if newest.Sequence <= int64(taken) {
			t.Errorf("its sequence is %d", newest.Sequence)
		}
	})
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

func TestAgent_ReportsAgainWhenAnAnswerGotLost(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		pass(15 * time.Second)
		w.cloud.with(func() { w.cloud.lost = true })
		w.host.SetImages("minimal", "new")
		pass(10 * time.Second)
		w.host.SetImages("minimal") // as the registry was told before
		w.cloud.with(func() { w.cloud.lost = false })
		pass(10 * time.Second)
		if newest, _ := w.cloud.report(); len(newest.Images) != 1 {
			t.Errorf("the registry believes that there are %v", newest.Images)
		}
	})
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

func TestAgent_GoesOnWhenItsDiskIsFull(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.start()
		file := filepath.Join(w.dir, "agent.json")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(file, "in-the-way"), 0o700); err != nil {
			t.Fatal(err)
		}
		w.cloud.with(func() { w.cloud.epoch, w.cloud.known = "e2", false })
		pass(time.Minute)
		beats := w.cloud.times("Heartbeat")
		if n := len(w.cloud.registrations()); n != 2 || time.Since(beats[len(beats)-1]) > 10*time.Second {
			t.Errorf("it registered %d times and beat last %s ago", n, time.Since(beats[len(beats)-1]))
		}
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		text, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(text), `"e2"`) {
			t.Errorf("what could not be written has not been written since: %v", err)
		}
	})
}

func TestAgent_FitsItsReportsIntoWhatARegistryTakes(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.host.Program("shout", func(p *drivertest.Process) int {
			p.Print("%s", strings.Repeat("\x01", 4000)+"the end") // six bytes each as JSON
			return 1
		})
		a := w.start()
		var id muster.InstanceID
		for range 250 {
			id = w.cloud.launch("shout")
		}
		a.nudgeNow(w, id)
		pass(time.Second)
		newest, _ := w.cloud.report()
		text, err := json.Marshal(newest)
		if err != nil || len(text) > 1<<20 || len(newest.Instances) != 250 {
			t.Errorf("a report of %d instances has %d bytes: %v", len(newest.Instances), len(text), err)
		}
		for _, r := range newest.Instances {
			if !strings.HasSuffix(r.Output, "the end\n") || len(r.Output) < 200 {
				t.Fatalf("%s is reported with the output %q", r.Machine, r.Output)
			}
		}
	})
}

func TestAgent_OneAStateDirectory(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		b := w.start()
		<-b.ended
		if muster.CodeOf(b.err) != muster.Conflict || !strings.Contains(b.err.Error(), w.dir) {
			t.Errorf("the second ended with %v", b.err)
		}
		a.stop()
		pass(time.Second)
		if w.start(); len(w.cloud.registrations()) != 2 {
			t.Error("a third did not come in after the first ended")
		}
	})
}

func TestAgent_RefusesAnIdentityThatCannotBeRead(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		if err := os.WriteFile(filepath.Join(w.dir, "agent.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		a := w.start()
		<-a.ended
		if a.err == nil || !strings.Contains(a.err.Error(), "agent.json") || len(w.cloud.registrations()) != 0 {
			t.Errorf("it ended with %v", a.err)
		}
	})
}

func TestAgent_TakesNudgesOnly(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a := w.start()
		id := w.cloud.launch()
		fetched := func() int { return len(w.cloud.times("Assignments")) }
		before := fetched()
		for name, c := range map[string]struct {
			body string
			want int
		}{
			"another incarnation": {`{"instance":"i-1","desiredRevision":2,"incarnation":2}`, 409},
			"an old incarnation":  {`{"instance":"i-1","desiredRevision":2}`, 409},
			"another instance":    {`{"instance":"i-2","desiredRevision":2,"incarnation":1}`, 400},
			"garbage":             {`garbage`, 400},
			"nothing":             {``, 400},
			"too much":            {`{"instance":"` + strings.Repeat("x", 5000) + `"}`, 413},
		} {
			if status := a.post(id, c.body); status != c.want {
				t.Errorf("%s: %d, want %d", name, status, c.want)
			}
		}
		if n := fetched(); n != before {
			t.Errorf("what is no nudge led to %d fetches", n-before)
		}
		for range 3 { // the second and third tell nothing new
			if status := a.nudge(id, 2, 1); status != 202 {
				t.Errorf("a nudge was answered with %d", status)
			}
		}
		if n := fetched(); n != before+1 {
			t.Errorf("three nudges of one revision led to %d fetches", n-before)
		}
	})
}

func TestAgent_SaysWhoItIs(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		a, err := agent.New(agent.Options{Driver: drivertest.NewFake(w.host), Registry: w.cloud, StateDir: w.dir})
		if err != nil {
			t.Fatal(err)
		}
		get := func(a *agent.Agent, path string) (int, map[string]any) {
			rec := httptest.NewRecorder()
			a.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, path, nil))
			var body map[string]any
			if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
				t.Errorf("%s: %v: %s", path, err, rec.Body)
			}
			return rec.Code, body
		}
		if status, _ := get(a, "/identity"); status != 503 {
			t.Errorf("before it runs: %d", status)
		}
		running := w.start()
		status, body := get(running.Agent, "/identity")
		want := map[string]any{"uid": "n-1", "id": "node-a", "incarnation": 1.0}
		if diff := cmp.Diff(want, body); diff != "" || status != 200 {
			t.Error(status, diff)
		}
		if status, _ := get(running.Agent, "/healthz"); status != 200 {
			t.Errorf("healthz: %d", status)
		}
	})
}

func TestNew_SaysWhatIsMissing(t *testing.T) {
	host := drivertest.NewHost()
	defer host.Close()
	full := agent.Options{Driver: drivertest.NewFake(host), Registry: newCloud(), StateDir: t.TempDir()}
	for field, less := range map[string]func(*agent.Options){
		"driver":   func(o *agent.Options) { o.Driver = nil },
		"registry": func(o *agent.Options) { o.Registry = nil },
		"stateDir": func(o *agent.Options) { o.StateDir = "" },
	} {
		o := full
		less(&o)
		_, err := agent.New(o)
		if own, ok := err.(*muster.Error); !ok || own.Field != field {
			t.Errorf("without %s: %v", field, err)
		}
	}
	if _, err := agent.New(full); err != nil {
		t.Error(err)
	}
}

func TestAgent_ServesItsPort(t *testing.T) {
	host := drivertest.NewHost()
	defer host.Close()
	c := newCloud()
	a, err := agent.New(agent.Options{Driver: drivertest.NewFake(host), Registry: c, StateDir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	r := begin(t, a)
	defer r.stop()
	var in muster.RegisterNodeInput
	eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.registered) == 0 {
			return false
		}
		in = c.registered[0]
		return true
	})
	hostname, _ := os.Hostname()
	if in.Addr != "127.0.0.1" || in.Port == 0 || in.CPUCount < 1 || in.MemoryMB < 1 || in.BootID == "" || in.Role != muster.Compute || string(in.ID) != hostname {
		t.Errorf("it registered as %+v", in)
	}
	url := fmt.Sprintf("http://%s:%d/healthz", in.Addr, in.Port)
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s answered %s", url, answer.Status)
	}
}

func TestAgent_NeedsToKnowWhereItIsReached(t *testing.T) {
	host := drivertest.NewHost()
	defer host.Close()
	for listen, code := range map[string]muster.Code{"0.0.0.0:0": muster.Invalid, "127.0.0.1:99999": muster.Internal} {
		a, err := agent.New(agent.Options{Driver: drivertest.NewFake(host), Registry: newCloud(), StateDir: t.TempDir(), Listen: listen})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); muster.CodeOf(err) != code || err == nil {
			t.Errorf("%s: %v", listen, err)
		}
	}
}
