package simulation_test

import (
	"testing/synctest"
	"time"
)

// weather is what happens to the cluster from outside.
type weather struct {
	c      *cluster
	dice   *dice
	events []event
	down   time.Time // when a killed server is started again; zero: it runs
}

// rage plays the plan's length of bad weather.
func (c *cluster) rage() {
	w := &weather{c: c, dice: newDice(c.seed, "weather"), events: chosen(newDice(c.seed, "events"))}
	for end := time.Now().Add(c.plan.chaos); time.Now().Before(end); {
		w.pass(w.dice.span(0, c.plan.gap))
		pick(w.dice, w.events).happen(w, pick(w.dice, c.nodes))
		c.look()
	}
	w.pass(time.Until(w.down))
}

// pass lets time go by, and starts the server when that is due.
func (w *weather) pass(d time.Duration) {
	if wait := time.Until(w.down); !w.down.IsZero() && wait <= d {
		time.Sleep(wait)
		d -= max(wait, 0)
		w.down = time.Time{}
		w.c.start()
	}
	time.Sleep(d)
	synctest.Wait()
}

// event is something that may happen, as often as its weight says.
type event struct {
	weight int
	happen func(w *weather, n *node) // n: some node
}

func events() []event {
	return []event{
		{3, func(w *weather, _ *node) { w.fell(w.c.kill) }},
		{1, func(w *weather, _ *node) { w.fell(w.c.stop) }},
		{3, func(w *weather, _ *node) { w.cut() }},
		{2, (*weather).crash},
		{1, (*weather).reboot},
		{1, (*weather).move},
		{3, (*weather).exit},
		{3, (*weather).exitProcess},
		{1, func(w *weather, _ *node) { w.setClock() }},
		{3, func(w *weather, _ *node) { w.setDisk() }},
		{3, func(w *weather, _ *node) { w.setNetwork() }},
		{1, (*weather).fumble},
		{1, func(w *weather, _ *node) { w.setDeaf() }},
		{1, (*weather).setImages},
	}
}

// chosen are the kinds of events of one run: not all, so that what they hide
// from each other comes to light.
func chosen(d *dice) (out []event) {
	for _, e := range events() {
		if !d.chance(0.6) {
			continue
		}
		for range e.weight {
			out = append(out, e)
		}
	}
	return append(out, event{1, func(w *weather, _ *node) { w.c.heal() }}, event{1, func(*weather, *node) {}})
}

func (w *weather) crash(n *node) {
	force, d := w.dice.chance(0.7), w.downtime()
	w.c.note("%s: the agent ends (by force: %t) for %s", n.name, force, d)
	n.crash(force, d)
}

func (w *weather) reboot(n *node) {
	d := w.downtime()
	w.c.note("%s: the host restarts, for %s", n.name, d)
	n.reboot(d)
}

func (w *weather) move(n *node) {
	d := w.downtime()
	n.move(d)
	w.c.note("%s: moves to %s, for %s", n.name, n.at(), d)
}

func (w *weather) setDisk() {
	mood, d := pick(w.dice, moods()), w.dice.span(time.Second, 90*time.Second)
	w.c.note("the disk is %s for %s", mood, d)
	w.c.storm.set(mood, d)
}

func (w *weather) setNetwork() {
	q := pick(w.dice, qualities())
	w.c.note("the network is %+v", q)
	w.c.network.set(q)
}

// fumble makes the node's driver fail now and then, or ends that.
func (w *weather) fumble(n *node) {
	n.clumsy.Store(!n.clumsy.Load())
	w.c.note("%s: clumsy is %t", n.name, n.clumsy.Load())
}

func (w *weather) setDeaf() {
	w.c.deaf.Store(w.dice.chance(0.5))
	w.c.note("deaf is %t", w.c.deaf.Load())
}

func (w *weather) setImages(n *node) {
	images := pick(w.dice, [][]string{{"minimal"}, {"minimal", "other"}, {"absent", "minimal", "other"}, {"other"}})
	w.c.note("%s: has the images %v", n.name, images)
	n.host.SetImages(images...)
}

// fell brings the server down for a while.
func (w *weather) fell(how func()) {
	if !w.down.IsZero() {
		return
	}
	how()
	w.down = time.Now().Add(pick(w.dice, []time.Duration{0, time.Second, 5 * time.Second, 45 * time.Second, 2 * time.Minute}))
}

func (w *weather) downtime() time.Duration {
	return pick(w.dice, []time.Duration{time.Second, 5 * time.Second, 20 * time.Second, time.Minute, 7 * time.Minute})
}

// cut cuts some nodes off: one, a few, most, or all.
func (w *weather) cut() {
	all := len(w.c.nodes)
	n := pick(w.dice, []int{1, 1, min(2, all), all/2 + 1, all})
	d := pick(w.dice, []time.Duration{5 * time.Second, 25 * time.Second, 45 * time.Second, 3 * time.Minute, 8 * time.Minute, 8 * time.Minute, 35 * time.Minute})
	to, from := w.dice.chance(0.8), w.dice.chance(0.8)
	w.c.note("%d links are cut for %s (to the server: %t, from it: %t)", n, d, to, from)
	for _, node := range some(w.dice, w.c.nodes, n) {
		node.link.cut(to, from, d)
	}
}

func (c *cluster) heal() {
	c.note("all links heal")
	for _, n := range c.nodes {
		n.link.heal()
	}
	for _, o := range c.operators {
		o.link.heal()
	}
}

// exit ends a payload as if by itself.
func (w *weather) exit(n *node) {
	if machines := n.host.Machines(); len(machines) > 0 {
		machine, status := pick(w.dice, machines), w.dice.below(2)
		w.c.note("%s: %s exits with %d", n.name, machine, status)
		n.host.Exit(machine, status, "")
	}
}

// exitProcess ends a service's process as if by itself.
func (w *weather) exitProcess(n *node) {
	if all := n.processes(); len(all) > 0 {
		ref, status := pick(w.dice, all).Spec.ProcessRef, w.dice.below(2)
		w.c.note("%s: %s exits with %d", n.name, ref, status)
		_ = n.host.ExitProcess(ref, status)
	}
}

// setClock sets the server's wall clock, at most 6 h off, so that no requestId
// has its time before its 24 h.
func (w *weather) setClock() {
	off := w.dice.span(-6*time.Hour, 6*time.Hour)
	if w.dice.chance(0.5) {
		off = w.dice.span(-10*time.Second, 10*time.Second)
	}
	w.c.note("the wall clock is off by %s", off)
	w.c.wall.Store(int64(off))
}
