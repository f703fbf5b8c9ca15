package liveness_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/liveness"
)

func TestDecide(t *testing.T) {
	o := liveness.Options{}.WithDefaults()
	const s = time.Second
	for name, c := range map[string]struct {
		node  liveness.Observed
		brake bool
		want  muster.NodeStatus // "": nothing changes
	}{
		"it beats":                             {liveness.Observed{Status: muster.Healthy, Silence: 10 * s}, false, ""},
		"just within the grace":                {liveness.Observed{Status: muster.Healthy, Silence: 30*s - 1}, false, ""},
		"the grace is over":                    {liveness.Observed{Status: muster.Healthy, Silence: 30 * s}, false, muster.Unhealthy},
		"the brake hides nothing":              {liveness.Observed{Status: muster.Healthy, Silence: 30 * s}, true, muster.Unhealthy},
		"it returned":                          {liveness.Observed{Status: muster.Unhealthy, Silence: s}, false, muster.Healthy},
		"it returned while the brake holds":    {liveness.Observed{Status: muster.Unhealthy, Silence: s}, true, muster.Healthy},
		"still silent":                         {liveness.Observed{Status: muster.Unhealthy, Silence: 60 * s, PruneSilence: 60 * s, Swept: true}, false, ""},
		"silent for too long":                  {liveness.Observed{Status: muster.Unhealthy, Silence: 300 * s, PruneSilence: 300 * s, Swept: true}, false, muster.Pruned},
		"but no sweep has seen it UNHEALTHY":   {liveness.Observed{Status: muster.Unhealthy, Silence: 300 * s, PruneSilence: 300 * s}, false, ""},
		"but its prune clock is fresh":         {liveness.Observed{Status: muster.Unhealthy, Silence: 300 * s, PruneSilence: 10 * s, Swept: true}, false, ""},
		"but the brake holds":                  {liveness.Observed{Status: muster.Unhealthy, Silence: 300 * s, PruneSilence: 300 * s, Swept: true}, true, ""},
		"healthy is never pruned in one sweep": {liveness.Observed{Status: muster.Healthy, Silence: 900 * s, PruneSilence: 900 * s, Swept: true}, false, muster.Unhealthy},
	} {
		t.Run(name, func(t *testing.T) {
			got := o.Decide(c.node, c.brake)
			if got.Keep != (c.want == "") || !got.Keep && got.Status != c.want {
				t.Errorf("decided %+v, want %q", got, c.want)
			}
		})
	}
}

func TestCount_Brakes(t *testing.T) {
	for c, want := range map[liveness.Count]bool{
		{Overdue: 0, Nodes: 0}: false, {Overdue: 1, Nodes: 1}: false, {Overdue: 1, Nodes: 2}: false, {Overdue: 2, Nodes: 2}: true,
		{Overdue: 1, Nodes: 3}: false, {Overdue: 2, Nodes: 3}: true, {Overdue: 2, Nodes: 4}: false, {Overdue: 3, Nodes: 4}: true,
		{Overdue: 50, Nodes: 100}: false, {Overdue: 51, Nodes: 100}: true,
	} {
		if got := c.Brakes(); got != want {
			t.Errorf("%d of %d silent: brakes %t, want %t", c.Overdue, c.Nodes, got, want)
		}
	}
	var c liveness.Count
	o := liveness.Options{}.WithDefaults()
	c.Add(o, liveness.Observed{Silence: 20 * time.Second})
	c.Add(o, liveness.Observed{Silence: 20*time.Second - 1})
	c.Add(o, liveness.Observed{Silence: time.Hour, Uncounted: true})
	if c != (liveness.Count{Overdue: 1, Nodes: 2}) {
		t.Errorf("counted %+v", c)
	}
}

func TestPulse(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		passed, wall time.Duration
		want         string
	}{
		"a second":                  {time.Second, time.Second, ""},
		"a little late":             {9 * time.Second, 9 * time.Second, ""},
		"it stood still":            {60 * time.Second, 60 * time.Second, "this server stood still for 1m0s"},
		"the clock was set forward": {time.Second, 24 * time.Hour, "the clock jumped by 23h59m59s"},
		"the clock was set back":    {time.Second, -24 * time.Hour, "the clock jumped by -24h0m1s"},
		"the clock is slewed":       {time.Second, 2 * time.Second, ""},
	} {
		t.Run(name, func(t *testing.T) {
			wall := start
			p := liveness.NewPulse(10*time.Second, func() time.Time { return wall })
			p.Look(start)
			wall = start.Add(c.wall)
			p.Look(start.Add(c.passed))
			got := p.Take()
			if got == "" != (c.want == "") || !strings.HasPrefix(got, c.want) {
				t.Errorf("heard %q, want %q", got, c.want)
			}
			if again := p.Take(); again != "" {
				t.Errorf("told twice: %q", again)
			}
		})
	}
}

func TestOptions_Validate(t *testing.T) {
	for name, o := range map[string]liveness.Options{
		"a grace shorter than a beat":   {Interval: time.Minute},
		"pruned before it is UNHEALTHY": {UnhealthyAfter: time.Hour},
	} {
		if muster.CodeOf(o.Validate()) != muster.Invalid {
			t.Errorf("%s was accepted", name)
		}
	}
	if err := (liveness.Options{}).Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}
