package sim

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
)

// Second is how a simulation is doing.
type Second struct {
	After                   time.Duration // since it began
	Healthy, Nodes          int           // nodes that are HEALTHY, and those that were asked for
	Running, Instances      int           // instances that run, and those that were asked for
	Beats, Launches         float64       // in the last second
	BeatMedian, BeatSlowest time.Duration // of the last second's beats: half, and 99 of 100, were as fast
	Errors                  int64         // calls that failed so far
}

// Result is what happened in a simulation until it ended, before the clean-up.
// Latencies are in milliseconds.
type Result struct {
	Prefix       string                        `json:"prefix"`
	Seconds      float64                       `json:"seconds"`
	Nodes        map[muster.NodeStatus]int     `json:"nodes"`
	Instances    map[muster.InstanceStatus]int `json:"instances"`
	Beats        Calls                         `json:"beats"`
	Launches     Calls                         `json:"launches"`
	Starts       Calls                         `json:"starts"`       // from the launch's commit to RUNNING
	Terminations int64                         `json:"terminations"` // those of the clean-up too
	Errors       int64                         `json:"errors"`
	LastError    string                        `json:"lastError,omitempty"`
}

// Calls are many of one kind.
type Calls struct {
	Count  int64   `json:"count"`
	Median float64 `json:"p50ms"`
	P99    float64 `json:"p99ms"`
	Most   float64 `json:"maxms"`
}

// tick tells each second how things are, until ctx ends.
func (s *simulation) tick(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	before, launched, at := new(spans), int64(0), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		beats, now := s.meter.beats.read(), time.Now()
		window, passed := beats.since(before), now.Sub(at).Seconds()
		launches := s.meter.launches.read().total()
		nodes, instances := s.mirror.counts()
		s.o.Each(Second{
			After: now.Sub(s.began), Healthy: nodes[muster.Healthy], Nodes: s.o.Nodes,
			Running: instances[muster.Running], Instances: s.o.Nodes * s.o.Instances,
			Beats: float64(window.total()) / passed, Launches: float64(launches-launched) / passed,
			BeatMedian: window.quantile(0.5), BeatSlowest: window.quantile(0.99), Errors: s.meter.errors.Load(),
		})
		before, launched, at = beats, launches, now
	}
}

// sum returns what happened so far.
func (s *simulation) sum() *Result {
	nodes, instances := s.mirror.counts()
	return &Result{
		Prefix: s.o.Prefix, Seconds: time.Since(s.began).Seconds(), Nodes: nodes, Instances: instances,
		Beats: callsOf(&s.meter.beats), Launches: callsOf(&s.meter.launches), Starts: callsOf(&s.meter.starts),
	}
}

func callsOf(l *latency) Calls {
	s := l.read()
	ms := func(q float64) float64 { return float64(s.quantile(q).Microseconds()) / 1000 }
	return Calls{Count: s.total(), Median: ms(0.5), P99: ms(0.99), Most: ms(1)}
}
