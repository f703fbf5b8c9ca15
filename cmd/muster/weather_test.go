package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// The thresholds of DESIGN.md's table, scaled down; the real ones are tested
// under virtual time, in package registry.
const (
	weatherBeat      = 500 * time.Millisecond
	weatherUnhealthy = 4 * weatherBeat
	weatherPrune     = 6 * time.Second
	weatherBrakeMax  = 12 * time.Second
	// weatherSlack is what a busy machine may add to a span.
	weatherSlack  = 5 * time.Second
	weatherAgents = 5
)

// weather is a real server and five agents, each in a network of its own, under
// one watch.
type weather struct {
	t      *testing.T
	net    *network
	dir    string
	server *exec.Cmd
	agents []*exec.Cmd
	api    *client.Client

	mu     sync.Mutex
	events []weatherEvent
	synced bool
}

// weatherEvent is a change of status of a node, or of the brake.
type weatherEvent struct {
	what string // such as a1-1 HEALTHY>UNHEALTHY
	at   time.Time
}

// TestWeather goes through "When something dies" of the design: exactly the
// changes that are meant to be, and no other.
func TestWeather(t *testing.T) {
	t.Parallel()
	w := newWeather(t)
	run := func(name string, test func(*testing.T)) {
		if t.Failed() {
			return // what comes next stands on it
		}
		t.Run(name, func(t *testing.T) {
			w.t = t
			test(t)
		})
		w.t = t
	}
	run("the server stands still", func(t *testing.T) { w.serverStandsStill(t, func() {}, func() {}) })
	run("the server's machine is suspended", func(t *testing.T) {
		// No beat waits in its buffers: it wakes up to nothing but silence.
		w.serverStandsStill(t, func() { w.net.link(t, hostServer, "down") }, func() { w.net.link(t, hostServer, "up") })
	})
	run("the server is cut off from everybody", w.serverCutOff)
	run("one agent is cut off", w.agentCutOff)
	run("the database stalls", w.databaseStalls)
	run("three of five are lost", w.realLoss)
}

func newWeather(t *testing.T) *weather {
	w := &weather{t: t, net: newNetwork(t, weatherAgents), dir: t.TempDir()}
	logs := newLogs(t)
	w.server = w.net.start(hostServer, logs, "server", "--data-dir", w.dir, "--listen", "0.0.0.0:9000", "--allowed-hosts", addressOf(hostServer),
		"--heartbeat-interval", weatherBeat.String(), "--unhealthy-after", weatherUnhealthy.String(), "--prune-after", weatherPrune.String(),
		"--brake-max", weatherBrakeMax.String(), "--sweep-interval", "100ms")
	key := firstKey(t, w.dir)
	api, err := client.New(client.Options{URL: "http://127.0.0.1:9000", Key: key, Transport: w.net.transport(hostServer), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	w.api = api
	w.until("the server answers", func() bool { _, err := api.ServerInfo(t.Context()); return err == nil })
	w.watch()
	for k := range weatherAgents {
		w.agents = append(w.agents, w.net.start(k+1, logs, "sim", "--nodes", "1", "--instances", "0", "--ramp", "0s", "--log-level", "warn",
			"--prefix", fmt.Sprint("a", k+1), "--listen", addressOf(k+1), "--server", "https://"+addressOf(hostServer)+":9000",
			"--ca", filepath.Join(w.dir, "ca", "ca.crt"), "--key-file", filepath.Join(w.dir, "admin.key")))
	}
	w.until("every node is registered", func() bool { return len(w.nodes()) == weatherAgents })
	w.until("the start-up grace is over", func() bool {
		h, err := api.ClusterHealth(t.Context())
		return err == nil && h.Status == muster.ClusterHealthy
	})
	return w
}

// watch collects the changes of status that a subscription tells, until the test ends.
func (w *weather) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.api.WatchHealth(ctx, nil, client.WatchOptions{}, w.note) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			w.t.Errorf("the watch ended with %v", err)
		}
	})
	w.until("the watch is up to date", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.synced })
}

func (w *weather) note(e client.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.synced = w.synced || e.Type == muster.EventSynced
	name := e.ObjectID
	if e.Node != nil {
		name = string(e.Node.ID)
	}
	// A busy machine may make the server believe that it stood still, at any time.
	if e.Type == muster.EventChange && e.PreviousStatus != e.Status && e.PreviousStatus != "" && name != string(muster.ExpiryPostponed) || name == string(muster.Brake) {
		w.events = append(w.events, weatherEvent{fmt.Sprintf("%s %s>%s", name, e.PreviousStatus, e.Status), e.At})
	}
	return nil
}

// seen returns the changes since the last ones that were as they should be.
func (w *weather) seen() []weatherEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func (w *weather) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = nil
}

// want waits for exactly these changes, in any order, and forgets them.
func (w *weather) want(what ...string) []weatherEvent {
	w.t.Helper()
	w.until(strings.Join(what, ", "), func() bool { return len(w.seen()) >= len(what) })
	return w.wantExactly(what...)
}

// wantExactly is want without waiting.
func (w *weather) wantExactly(what ...string) []weatherEvent {
	w.t.Helper()
	events := w.seen()
	w.forget()
	var got []string
	for _, e := range events {
		got = append(got, e.what)
	}
	slices.Sort(got)
	slices.Sort(what)
	if diff := cmp.Diff(what, got); diff != "" {
		w.t.Fatalf("the changes are not as they should be (-want +got):\n%s", diff)
	}
	return events
}

func (w *weather) until(what string, holds func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("not within 60 s: %s; seen: %v", what, w.seen())
		}
	}
}

// pass lets time pass: how long something lasts is what these tests are about.
func pass(d time.Duration) { time.Sleep(d) }

func (w *weather) nodes() []*client.Node {
	var all []*client.Node
	for n, err := range w.api.AllNodes(w.t.Context(), nil) {
		if err != nil {
			return nil
		}
		all = append(all, n)
	}
	return all
}

// turns are the changes of every node from one status to another.
func turns(from, to string, agents ...int) (all []string) {
	for _, k := range agents {
		all = append(all, fmt.Sprintf("a%d-1 %s>%s", k, from, to))
	}
	return all
}

// serverStandsStill stops the server's process for longer than a node may be
// silent, and calls before and after around it.
func (w *weather) serverStandsStill(t *testing.T, before, after func()) {
	info, err := w.api.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before()
	if err := w.server.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	pass(3 * weatherUnhealthy)
	if err := w.server.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	after()
	w.until("the server says that it stood still", func() bool {
		changes, err := w.api.Changes(t.Context(), client.ChangesInput{Since: info.Cursor, ObjectID: string(muster.ExpiryPostponed)})
		return err == nil && slices.ContainsFunc(changes.Edges, func(e client.ChangeEdge) bool { return strings.Contains(e.Node.Reason, "stood still") })
	})
	pass(2 * weatherUnhealthy) // whoever did not return would turn now
	w.wantExactly()
}

func (w *weather) serverCutOff(t *testing.T) {
	w.net.link(t, hostServer, "down")
	all := []int{1, 2, 3, 4, 5}
	w.want(append(turns("HEALTHY", "UNHEALTHY", all...), "BRAKE >HOLDS")...)
	pass(weatherPrune + weatherUnhealthy)
	w.wantExactly()
	h, err := w.api.ClusterHealth(t.Context())
	if err != nil || h.Brake.State != muster.Holds {
		t.Fatalf("after longer than the prune span the brake is %+v, %v", h, err)
	}
	w.net.link(t, hostServer, "up")
	w.want(append(turns("UNHEALTHY", "HEALTHY", all...), "BRAKE HOLDS>CLEAR")...)
}

func (w *weather) agentCutOff(t *testing.T) {
	w.net.link(t, 4, "down")
	w.want(turns("HEALTHY", "UNHEALTHY", 4)...)
	n, err := w.api.Node(t.Context(), "a4-1")
	if err != nil || n.UnhealthyBecause == nil || *n.UnhealthyBecause.MissedBeats < 3 || n.UnhealthyBecause.LastBeat == nil {
		t.Errorf("what was observed of it: %+v, %v", n, err)
	}
	pass(weatherUnhealthy / 2)
	up := time.Now()
	w.net.link(t, 4, "up")
	back := w.want(turns("UNHEALTHY", "HEALTHY", 4)...)
	if after := back[0].at.Sub(up); after > 2*weatherBeat+weatherSlack {
		t.Errorf("it took %s to be HEALTHY again, more than two beats of %s", after, weatherBeat)
	}
	pass(2 * weatherUnhealthy)
	w.wantExactly()
}

// databaseStalls holds the database's lock, as another process that forgot to
// let go of it.
func (w *weather) databaseStalls(t *testing.T) {
	db, err := sql.Open("sqlite3", filepath.Join(w.dir, "muster.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	held, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.until("the lock is ours", func() bool { _, err := held.ExecContext(t.Context(), "BEGIN IMMEDIATE"); return err == nil })
	began := time.Now()
	if code, said := w.muster("--timeout", "20s", "node", "cordon", "a1-1"); code != 6 || !strings.Contains(said, "another process holds the database") {
		t.Errorf("a mutation ended with %d: %s", code, said)
	}
	pass(2*weatherUnhealthy - time.Since(began))
	for _, n := range w.nodes() {
		if n.LastSeen == nil || time.Since(*n.LastSeen) > weatherUnhealthy || n.Status != muster.Healthy {
			t.Errorf("%s is %s and was last heard of at %v", n.ID, n.Status, n.LastSeen)
		}
	}
	w.wantExactly()
	if _, err := held.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	w.until("mutations are taken again", func() bool { code, _ := w.muster("node", "cordon", "a1-1"); return code == 0 })
	if code, said := w.muster("node", "uncordon", "a1-1"); code != 0 {
		t.Errorf("uncordon ended with %d: %s", code, said)
	}
	w.wantExactly()
}

func (w *weather) realLoss(t *testing.T) {
	for _, k := range []int{1, 3, 5} {
		_ = w.agents[k-1].Process.Kill()
	}
	began := w.want(append(turns("HEALTHY", "UNHEALTHY", 1, 3, 5), "BRAKE CLEAR>HOLDS")...)
	ended := w.want(append(turns("UNHEALTHY", "PRUNED", 1, 3, 5), "BRAKE HOLDS>CLEAR")...)
	at := func(events []weatherEvent, what string) time.Time {
		return events[slices.IndexFunc(events, func(e weatherEvent) bool { return strings.HasPrefix(e.what, what) })].at
	}
	held, let, pruned := at(began, "BRAKE"), at(ended, "BRAKE"), at(ended, "a1-1")
	if span := let.Sub(held); span < weatherBrakeMax || span > weatherBrakeMax+weatherSlack {
		t.Errorf("the brake held for %s instead of %s", span, weatherBrakeMax)
	}
	if span := pruned.Sub(let); span < weatherPrune || span > weatherPrune+weatherSlack {
		t.Errorf("they were pruned %s after the brake ended instead of %s", span, weatherPrune)
	}
	if left := w.nodes(); len(left) != 2 || left[0].Status != muster.Healthy || left[1].Status != muster.Healthy {
		t.Errorf("left are %+v", left)
	}
}

// muster runs a command beside the server.
func (w *weather) muster(args ...string) (code int, said string) {
	process := w.net.command(hostServer, args...)
	var err bytes.Buffer
	process.Stderr = &err
	_ = process.Run()
	return process.ProcessState.ExitCode(), err.String()
}
