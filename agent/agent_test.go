package agent_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
)

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
