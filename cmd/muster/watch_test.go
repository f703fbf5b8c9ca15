package main

import (
	"context"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

const (
	watchClients = 200
	watchNodes   = 12
	watchChanges = 5000
	watchKills   = 20
	watchSeed    = 20261130
)

// TestWatch_MissesNothing has 200 clients of all habits follow 5,000 changes
// through kills of the server and compactions of the log. What each was told is
// compared with the change table itself.
func TestWatch_MissesNothing(t *testing.T) {
	s := newServer(t, "--unhealthy-after", "1h", "--prune-after", "2h", "--terminated-ttl", "1s",
		"--retain-changes", "1200", "--flush-interval", "250ms")
	s.start()
	info, err := s.client().ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{t: t, server: s, oracle: newOracle(t, s.dir, info.Epoch), closed: map[int]int{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var reading sync.WaitGroup
	reading.Go(func() { c.oracle.run(ctx) })
	var keepers []*keeper
	var uids []string
	for k := range watchNodes {
		keepers = append(keepers, s.join(c.oracle, k))
		uids = append(uids, string(keepers[k].uid))
	}
	storm, calm := context.WithCancel(ctx)
	defer calm()
	c.settle(storm, everyWatched(uids))
	hangUp := c.connect(ctx)
	stop := keep(ctx, keepers)
	c.storm(ctx)
	stop()
	calm()
	c.count()
	c.await(ctx)
	hangUp()
	cancel()
	reading.Wait()
	c.compare()
}

// checker is the clients and what is known about them.
type checker struct {
	t       *testing.T
	server  *server
	oracle  *oracle
	sockets []*socket

	fromCache, fromLog float64 // over all lives of the server
	deliveries         float64

	mu     sync.Mutex
	closed map[int]int // close codes
}

// settle makes the clients. Some follow one stream, some many.
func (c *checker) settle(storm context.Context, every []watched) {
	ways := []habits{
		{},
		{fromNow: true},
		{pace: 2 * time.Millisecond},
		{nap: 1500 * time.Millisecond, moderate: 400},
		{absence: true, moderate: 60},
		{cuts: true, forgets: true, moderate: 25},
		{cuts: true, moderate: 150, fromNow: true},
		{churn: true, moderate: 40},
		{churn: true, moderate: 60, fromNow: true}, // many streams
		{cuts: true, moderate: 300},                // many streams
	}
	for k := range watchClients {
		way := k % len(ways)
		socket := &socket{
			t: c.t, address: strings.TrimPrefix(c.server.url, "http://"), oracle: c.oracle, habits: ways[way],
			random: rand.New(rand.NewPCG(watchSeed, uint64(k))), codes: c.ended, storm: storm,
		}
		streams := 1
		if way >= 8 {
			streams = 8
		}
		for n := range streams {
			socket.streams = append(socket.streams, &stream{watched: every[(k/len(ways)+way*5+n*7)%len(every)]})
		}
		c.sockets = append(c.sockets, socket)
	}
}

// ended notes why a connection ended.
func (c *checker) ended(code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed[code]++
}

// connect has all clients follow until the function that it returns is called.
func (c *checker) connect(ctx context.Context) (hangUp func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	for _, k := range c.sockets {
		wait.Go(func() { k.run(ctx) })
	}
	return func() {
		cancel()
		wait.Wait()
	}
}

// storm kills the server again and again until there have been enough changes.
func (c *checker) storm(ctx context.Context) {
	moments := rand.New(rand.NewPCG(watchSeed, watchSeed))
	began := c.oracle.head()
	for kill := range int64(watchKills) {
		if !c.grow(ctx, began+(kill+1)*watchChanges/(watchKills+1)) {
			return
		}
		time.Sleep(time.Duration(moments.IntN(50)) * time.Millisecond) // the moment is what the test is about
		c.count()
		c.server.kill()
		c.server.start()
	}
	c.grow(ctx, began+watchChanges)
}

// grow waits until the log has grown up to a revision.
func (c *checker) grow(ctx context.Context, revision int64) bool {
	limited, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	c.oracle.reach(limited, revision)
	if c.oracle.head() < revision {
		c.t.Errorf("the log did not grow to %d within a minute, it ends at %d", revision, c.oracle.head())
		return false
	}
	return true
}

// count adds up what this life of the server has served.
func (c *checker) count() {
	n := c.server.metrics()
	c.fromCache += n.served("cache")
	c.fromLog += n.served("log")
	c.deliveries += n["muster_transport_deliveries_total"]
}

// await waits until nothing more happens and each stream has been told all.
func (c *checker) await(ctx context.Context) {
	var behind *stream
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err := c.oracle.read(ctx); err != nil {
			c.t.Fatal(err)
		}
		if !c.oracle.quiet() {
			continue
		}
		rows, _ := c.oracle.all()
		if behind = c.behind(rows); behind == nil {
			return
		}
	}
	c.t.Errorf("not within a minute: everything is quiet, and no stream is behind; %v is", behind)
}

// behind returns a stream that has not been told everything yet.
func (c *checker) behind(rows []*row) *stream {
	for _, k := range c.sockets {
		for _, s := range k.streams {
			if s.behind(rows) {
				return s
			}
		}
	}
	return nil
}

func (s *stream) behind(rows []*row) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cursor == "" {
		return true
	}
	for _, r := range rows[s.at:] {
		if deliver, _ := s.watched.tells(r); deliver {
			return true
		}
	}
	return false
}

// compare holds all that was told against the change table.
func (c *checker) compare() {
	rows, compactions := c.oracle.all()
	var resumed, compacted, pieces, changes int
	expected := map[string][]told{}
	for _, k := range c.sockets {
		for _, s := range k.streams {
			name := s.watched.String()
			if expected[name] == nil {
				expected[name] = s.watched.expected(c.oracle, rows)
			}
			for n, p := range s.pieces {
				last := int64(len(rows))
				if n+1 < len(s.pieces) {
					last = p.upTo // it was given up there
				}
				c.comparePiece(s, p, rows, between(expected[name], p.from, last))
				changes += len(p.changes)
			}
			resumed, compacted, pieces = resumed+s.resumed, compacted+s.compacted, pieces+len(s.pieces)
		}
	}
	c.t.Logf("%d changes, %d compactions; %d deliveries, %.0f of them from the cache, %.0f executed from the log; %d changes told in %d pieces, %d times resumed, %d times told COMPACTED; closed: %v",
		len(rows), compactions, int(c.deliveries), c.fromCache, c.fromLog, changes, pieces, resumed, compacted, c.closed)
	for what, n := range map[string]int{
		"changes were written": len(rows) / watchChanges, "compactions": compactions / 5, "streams resumed": resumed, "streams were told COMPACTED": compacted,
		"deliveries came from the cache": int(c.fromCache), "changes were executed from the log": int(c.fromLog),
	} {
		if n == 0 {
			c.t.Errorf("too few %s: the test has shown nothing", what)
		}
	}
	for code, n := range c.closed {
		if code != websocket.CloseAbnormalClosure && code != websocket.CloseTryAgainLater {
			c.t.Errorf("%d connections were closed with %d", n, code)
		}
	}
}

// between is the part of what is expected in (from, last].
func between(all []told, from, last int64) []told {
	after := func(revision int64) int {
		return sort.Search(len(all), func(i int) bool { return all[i].revision > revision })
	}
	return all[after(from):max(after(from), after(last))]
}

// comparePiece wants the present state, each change after it in order, and
// nothing else.
func (c *checker) comparePiece(s *stream, p *piece, rows []*row, want []told) {
	if p.from < 0 {
		return // cut off before its present state was whole; only ever the last piece, and await has looked at that
	}
	state := s.watched.state(rows, p.from)
	if p.fromNow {
		state = map[string]string{}
	}
	if got, want := showState(p.present), showState(state); got != want {
		c.t.Errorf("%s: present at %d was\n%s, and is\n%s", s.watched, p.from, got, want)
	}
	for i := range max(len(want), len(p.changes)) {
		var is, should told
		if i < len(p.changes) {
			is = p.changes[i]
		}
		if i < len(want) {
			should = want[i]
		}
		if is != should {
			c.t.Errorf("%s from %d: change %d was told as\n%+v, and is\n%+v", s.watched, p.from, i, is, should)
			return
		}
	}
}
