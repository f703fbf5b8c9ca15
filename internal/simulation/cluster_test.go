package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// cluster is everything that a seed plays with.
type cluster struct {
	*trace
	seed    uint64
	plan    plan
	root    string
	logger  *slog.Logger
	network network
	storm   *storm
	book    *book
	pulses  *pulses

	wall  atomic.Int64 // how far the wall clock was set off
	deaf  atomic.Bool  // the server's own port does not answer
	life  atomic.Pointer[life]
	lives int
	dir   string // of the data now

	nodes     []*node
	operators []*operator
	watchers  []*watcher

	ctx   context.Context // of nodes, operators and watchers: the test's, kept because the cluster is the test
	tasks sync.WaitGroup
}

// life is one run of the server.
type life struct {
	*registry.Registry
	store     *store.Store
	hub       *watch.Hub
	shelf     *shelf
	listening time.Time
	dead      chan struct{} // closed when it was killed: it answers nobody, and writes nothing
	ctx       context.Context
	cancel    context.CancelFunc
	ended     chan error
}

func newCluster(t *testing.T, seed uint64, verbose bool) *cluster {
	c := &cluster{
		trace: &trace{began: time.Now(), all: verbose}, seed: seed, plan: planOf(seed), root: t.TempDir(), pulses: newPulses(),
		logger: slog.New(slog.DiscardHandler),
	}
	if verbose {
		c.logger = slog.New(slog.NewTextHandler(c.trace, &slog.HandlerOptions{ReplaceAttr: untimed}))
	}
	c.storm = c.newStorm()
	c.book = newBook(c)
	c.note("seed %d: %+v", seed, c.plan)
	return c
}

func untimed(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// background runs something that the end of the simulation waits for.
func (c *cluster) background(do func()) { c.tasks.Go(do) }

func (c *cluster) now() time.Time { return time.Now().Add(time.Duration(c.wall.Load())) }

// start starts the server on what the disk has.
func (c *cluster) start() {
	if c.lives++; c.dir == "" {
		c.dir = filepath.Join(c.root, "data-1")
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{shelf: &shelf{}, dead: make(chan struct{}), ctx: ctx, cancel: cancel, ended: make(chan error, 1)}
	var err error
	l.store, err = store.Open(ctx, store.Options{Dir: c.dir, Fault: func(p store.Point) error { return c.storm.strike(l, p) }})
	if err != nil {
		panic(fmt.Sprintf("open the store: %v", err))
	}
	c.book.read(l)
	c.book.continues(l)
	l.hub = watch.New(l.store, c.plan.hub())
	opts := c.plan.registry(c.now)
	opts.Probe = func(context.Context) error {
		if c.deaf.Load() {
			return errors.New("connection refused")
		}
		return nil
	}
	logger := c.logger.With("server", c.lives)
	l.Registry, err = registry.Open(ctx, registry.Deps{Store: disk{l.store, c, l}, History: l.store, Hub: l.hub, Agents: c, Logger: logger, Feed: l.shelf}, opts)
	if err != nil {
		panic(fmt.Sprintf("open the registry: %v", err))
	}
	l.listening = time.Now()
	l.Listening()
	go func() { l.ended <- l.Run(ctx) }()
	c.life.Store(l)
	c.note("server %d runs from revision %d", c.lives, l.ServerInfo().Revision)
}

// stop ends the server as a signal would.
func (c *cluster) stop() {
	if l := c.life.Swap(nil); l != nil {
		c.note("server stops")
		if err := c.end(l); err != nil {
			c.fault("the server ended with %v", err)
		}
	}
}

// kill ends the server at once. What the disk has at this instant is all that
// the next one gets: the files are copied before anybody can tidy them up.
func (c *cluster) kill() {
	l := c.life.Swap(nil)
	if l == nil {
		return
	}
	synctest.Wait() // nobody is inside of SQLite; someone may sleep between two steps of a commit
	c.note("server is killed")
	before := c.dir
	c.dir = filepath.Join(c.root, fmt.Sprintf("data-%d", c.lives+1))
	if err := copyData(c.dir, before); err != nil {
		panic(err)
	}
	close(l.dead)
	_ = c.end(l) // whatever it says, it is dead
	_ = os.RemoveAll(before)
}

func (c *cluster) end(l *life) error {
	l.cancel()
	return errors.Join(<-l.ended, l.store.Close())
}

// copyData copies the database and its write-ahead log; the index beside them is
// made anew, as after the end of the machine.
func copyData(to, from string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range []string{store.FileName, store.FileName + "-wal"} {
		if err := copyFile(filepath.Join(to, name), filepath.Join(from, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Nudge carries a nudge to whoever is at the address.
func (c *cluster) Nudge(ctx context.Context, n registry.Nudge) error {
	node := c.nodeAt(n.Addr)
	if node == nil {
		return unreachable("no such address")
	}
	f := node.link.fate("nudge")
	if !sleep(ctx, min(f.there, nudgeTimeout)) || f.there > nudgeTimeout || f.lost || !node.link.bothWays() {
		return unreachable("the nudge got lost")
	}
	if f.twice {
		c.background(func() {
			time.Sleep(f.again)
			_, _ = node.post(n)
		})
	}
	code, err := node.post(n)
	if err == nil && code >= 300 {
		err = fmt.Errorf("the agent answered %d", code)
	}
	return err
}

// Identify asks who is at the address.
func (c *cluster) Identify(_ context.Context, at *muster.Node) (muster.NodeUID, int64, error) {
	node := c.nodeAt(at.Addr)
	if node == nil || !node.link.bothWays() {
		return "", 0, unreachable("nobody answers at " + at.Addr)
	}
	return node.identity()
}

func (l *link) bothWays() bool {
	to, from := l.open()
	return to && from
}

func (c *cluster) nodeAt(addr string) *node {
	for _, n := range c.nodes {
		if n.at() == addr {
			return n
		}
	}
	return nil
}

// sleep waits for d and reports whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// judged reports the verdict to the test.
func (c *cluster) judged(t *testing.T) {
	faults := c.failed()
	if len(faults) > 0 {
		t.Errorf("seed %d:\n%s", c.seed, strings.Join(faults, "\n"))
	}
	if len(faults) > 0 || flagged[bool](flagLog) {
		t.Logf("the story of seed %d:\n%s", c.seed, c.trace)
	}
}
