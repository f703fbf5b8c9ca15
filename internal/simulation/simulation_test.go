package simulation_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
)

// The flags that say which seeds to run.
const (
	flagSeeds = "simulation.seeds"
	flagFirst = "simulation.first"
	flagLog   = "simulation.log"
)

func TestMain(m *testing.M) {
	flag.Int(flagSeeds, 8, "how many seeds TestSimulation runs")
	flag.Int(flagFirst, 1, "the first of them")
	flag.Bool(flagLog, false, "tell the story of each seed, with what servers and agents log")
	goleak.VerifyTestMain(m)
}

func flagged[T any](name string) T { return flag.Lookup(name).Value.(flag.Getter).Get().(T) }

func TestSimulation(t *testing.T) {
	first := flagged[int](flagFirst)
	for seed := first; seed < first+flagged[int](flagSeeds); seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, uint64(seed))
		})
	}
}

// simulate plays a seed: bad weather, then calm, then judgement.
func simulate(t *testing.T, seed uint64) {
	t.Helper()
	var c *cluster
	synctest.Test(t, func(t *testing.T) {
		c = newCluster(t, seed, flagged[bool](flagLog))
		var cancel context.CancelFunc
		c.ctx, cancel = context.WithCancel(context.Background())
		c.start()
		c.populate()
		people, leave := context.WithCancel(c.ctx)
		for _, o := range c.operators {
			c.background(func() { o.work(people) })
		}
		for _, w := range c.watchers {
			c.background(func() { w.watch(c.ctx) })
		}
		c.rage()
		leave()
		c.calm()
		c.judge()
		cancel()
		c.tasks.Wait()
		c.stop()
		for _, n := range c.nodes {
			n.host.Close()
		}
	})
	c.judged(t)
	t.Log(c.tally())
}

func (c *cluster) populate() {
	for k := range c.plan.nodes {
		c.nodes = append(c.nodes, c.newNode(k+1))
	}
	for k := range c.plan.operators {
		c.operators = append(c.operators, c.newOperator(k+1))
	}
	for k := range c.plan.watchers {
		c.watchers = append(c.watchers, c.newWatcher(k+1))
	}
	for _, n := range c.nodes {
		if !n.dice.chance(0.3) {
			n.joins = 0 // in fair weather
		}
		c.background(n.supervise)
	}
	pass(time.Second)
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// calm ends the weather and lets everything settle.
func (c *cluster) calm() {
	c.note("the weather clears")
	c.network.set(quality{delay: 20 * time.Millisecond})
	c.storm.set(calm, 0)
	c.deaf.Store(false)
	c.heal()
	for _, n := range c.nodes {
		n.clumsy.Store(false)
	}
	if c.life.Load() == nil {
		c.start()
	}
	pass(time.Minute) // for what is still on its way
	c.welcomeBack()
	pass(12 * time.Minute)
}

// welcomeBack lets nodes join again that were removed.
func (c *cluster) welcomeBack() {
	o := c.newOperator(0)
	v := c.life.Load().View()
	for n := range v.Nodes() {
		if !n.Live() {
			o.node(c.ctx, "forget", func(ctx context.Context, l *life) (*muster.Node, int64, error) {
				return l.ForgetNode(ctx, string(n.UID))
			})
		}
	}
}

func (c *cluster) judge() {
	c.look()
	c.settled()
	c.judgeRequests()
	c.book.keepsWord()
	c.book.namedRightly()
	before := c.book.head()
	pass(10 * time.Minute)
	c.look()
	c.judgeIdle(before)
	c.settled()
	for _, w := range c.watchers {
		c.note("%s: %d events", w.name, w.events)
	}
	c.judgeDisk(c.life.Load())
	kept := present(c.life.Load().View())
	c.stop()
	c.start()
	if now := present(c.life.Load().View()); encoded(now) != encoded(kept) {
		c.fault("after a restart the state is\n%v\nand was\n%v", now, kept)
	}
}
