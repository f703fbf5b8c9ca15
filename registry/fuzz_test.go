package registry_test

import (
	"context"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/muster-cloud/muster"
)

// lasting is a testing.TB for what outlives one input of a fuzz target.
type lasting struct {
	testing.TB // of the present input
	dir        string
	cleanups   []func()
}

// Cleanup is called when the world ends.
func (l *lasting) Cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

// TempDir is gone when the target ends.
func (l *lasting) TempDir() string {
	dir, err := os.MkdirTemp(l.dir, "")
	if err != nil {
		l.Fatal(err)
	}
	return dir
}

// fuzzed is a world for the inputs of a fuzz target; after a while it is looked at
// as a whole, and a new one begins.
type fuzzed struct {
	*world
	tb   *lasting
	left int
}

func newFuzzed(f *testing.F) *fuzzed {
	z := &fuzzed{tb: &lasting{TB: f, dir: f.TempDir()}}
	f.Cleanup(func() {
		z.tb.TB = f
		z.check(f)
	})
	return z
}

// next has a world with room for one more.
func (z *fuzzed) next(t *testing.T) *world {
	z.tb.TB = t
	if z.left--; z.left < 0 {
		z.check(t)
		z.world, z.left = open(z.tb, setup{}), 150
		z.join(t, "n1", 4096, 1<<20)
	}
	return z.world
}

// check compares what is in memory with what the database has, and ends the world.
func (z *fuzzed) check(t testing.TB) {
	t.Helper()
	if z.world == nil {
		return
	}
	state, err := z.store.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	byID := func(all []*muster.Instance) map[muster.InstanceID]*muster.Instance {
		m := map[muster.InstanceID]*muster.Instance{}
		for _, i := range all {
			m[i.ID] = i
		}
		return m
	}
	memory := byID(slices.Collect(z.View().Instances()))
	if diff := cmp.Diff(memory, byID(state.Instances), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the instances differ (-memory +database):\n%s", diff)
	}
	nodes := map[muster.NodeUID]*muster.Node{}
	for n := range z.View().Nodes() {
		nodes[n.UID] = n
	}
	for _, n := range state.Nodes {
		if diff := cmp.Diff(nodes[n.UID], n, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(muster.Node{}, "LastSeen")); diff != "" {
			t.Errorf("node %s differs (-memory +database):\n%s", n.ID, diff)
		}
	}
	for _, f := range z.tb.cleanups {
		f()
	}
	z.tb.cleanups, z.world = nil, nil
}

// refusable fails the test at an error that only a defect explains.
func refusable(t *testing.T, err error) {
	t.Helper()
	if code := muster.CodeOf(err); code == muster.Internal || code == muster.Unavailable {
		t.Fatalf("%s: %v", code, err)
	}
}

// FuzzLaunch: whatever is asked for is refused with a reason, or is in the database
// and the log as it is in memory.
func FuzzLaunch(f *testing.F) {
	f.Add("NANO", "web", "minimal", "/bin/true", "key", "value", "request", false, int64(0))
	f.Add("LARGE", "", "", "", "", "", "", true, int64(time.Minute))
	f.Add("x", "-", "../x", "a\x00b", "a=b", "\xff", "\x01", true, int64(-1))
	f.Add("MICRO", "é", "mi nimal", " \n\t", "\u202e", "\ufffd\U0001F600", "r\u2028", false, int64(1))
	z := newFuzzed(f)
	f.Fuzz(func(t *testing.T, size, name, image, word, key, value, request string, queue bool, timeout int64) {
		w := z.next(t)
		in := muster.LaunchInstanceInput{
			Type: muster.InstanceType(size), Name: name, Image: image, RequestID: request, Queue: queue,
			Command: []string{word, value}, Env: muster.Map{key: value}, Labels: muster.Map{key: value},
		}
		if timeout != 0 {
			in.QueueTimeout = new(time.Duration(timeout))
		}
		i, _, err := w.LaunchInstance(ctx, in)
		if err != nil {
			refusable(t, err)
			return
		}
		rows, err := w.History.ChangesAfter(ctx, i.Revision-1, 1)
		if err != nil || len(rows) != 1 {
			t.Fatalf("the log has %d rows of it: %v", len(rows), err)
		}
		hidden := cmpopts.IgnoreFields(muster.Instance{}, "Env", "Output") // never in the log
		if diff := cmp.Diff(i, rows[0].Instance, cmpopts.EquateEmpty(), hidden); diff != "" && i.Revision == rows[0].Revision {
			t.Fatalf("the log has it otherwise (-answered +log):\n%s", diff)
		}
		if !maps.Equal(i.Env, in.Env) {
			t.Fatalf("its environment is %q", i.Env)
		}
	})
}

// FuzzRegister: the same for a node that brings a machine along.
func FuzzRegister(f *testing.F) {
	f.Add("n2", "host", "192.0.2.9", "key", "value", "minimal", "c-i-1-1", "i-1", "exited", "output\n", int64(1), 5)
	f.Add("", "\x00", "::ffff:192.0.2.9", "", "\xff", "..", "-", "i-0", "a\x00\xffb", "a\x00\xffb", int64(-1), -1)
	f.Add("a.b", "h\u2028", "2001:db8::1%eth0", "k", "", "x", "m\u00e9", "stranger", "\x1b[31m", "\r\n\t", int64(1<<62), 1<<31)
	z := newFuzzed(f)
	f.Fuzz(func(t *testing.T, id, host, addr, key, value, image, machine, instance, reason, output string, generation int64, number int) {
		w := z.next(t)
		in := nodeInput("n1", 4, 4096)
		in.ID, in.Hostname, in.Addr, in.Labels, in.Images = muster.NodeID(id), host, addr, muster.Map{key: value}, []string{image}
		in.Version, in.BootID, in.Epoch = value, host, machine
		in.Instances = []muster.InstanceReportInput{{
			Machine: machine, Epoch: value, ID: muster.InstanceID(instance), Generation: generation, Status: muster.Stopped, Reason: reason,
			Output: output, Addr: addr, BaseImage: image, CPULimit: number, MemLimitMB: number, PID: &number, ExitCode: &number,
		}}
		out, err := w.RegisterNode(ctx, in)
		if err != nil {
			refusable(t, err)
			return
		}
		if n := w.View().NodeByUID(out.Node.UID); n == nil || n.Hostname != host || n.Labels[key] != value {
			t.Fatalf("registered %+v as %+v", in, n)
		}
	})
}
