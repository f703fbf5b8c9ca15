package cli

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/sim"
)

const simLong = `Run many agents in this process against a server, launch instances on them, and
measure: a load test, and a demonstration. The agents are real ones, the machines
below them are hollow: they use nothing. Each second a line says how it goes; at
the end, after --duration or Ctrl-C, a table says what happened.

Each agent has its own identity and its own port for nudges; they share one client
of --connections connections, and one access key of the role NODE, which is made with
yours, an ADMIN's, and revoked at the end. What it makes carries the label muster-sim=PREFIX and
touches no other node; --clean takes it away again at the end.

Each node takes a /24 of the server's --instance-network, which has room for 256 by
default: start the server with --instance-network 10.0.0.0/8 for more. A node that
has left keeps its /24 for the server's --tombstone-ttl.`

const simExamples = `  muster sim --nodes 200 --instances 5 --duration 1m --clean
  muster sim --nodes 50 --churn 20 --lifetime 5m`

func (a *app) simCommand() *cobra.Command {
	var logs logSettings
	o := sim.Options{Nodes: sim.DefaultNodes, Listen: sim.DefaultListen, Parallel: sim.DefaultParallel, Connections: sim.DefaultConnections}
	c := &cobra.Command{
		Use: "sim", Short: "Run many hollow nodes against a server, to load and to show it", Long: simLong, Example: simExamples,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := logs.open(a.std.Err)
			if err != nil {
				return err
			}
			t, err := a.aim()
			if err != nil {
				return err
			}
			a.warnOfPlainText(t)
			o.Server, o.Version, o.Logger, o.Each = t.options(0), version, log, a.printSecond
			result, err := sim.Run(c.Context(), o)
			if err != nil {
				return err
			}
			return a.write(result, func(w io.Writer) { a.printResult(w, result) })
		},
	}
	f := c.Flags()
	f.IntVar(&o.Nodes, "nodes", o.Nodes, "how many hollow nodes")
	f.IntVar(&o.Instances, "instances", 10, "instances that are launched for each of them; 0: none")
	f.DurationVar(&o.Duration, "duration", 0, "how long it lasts; 0: until Ctrl-C")
	f.Float64Var(&o.Churn, "churn", 0, "instances a second that are replaced, those that have ended first")
	f.DurationVar(&o.Lifetime, "lifetime", 0, "the average time after which an instance ends by itself; 0: never")
	f.DurationVar(&o.Ramp, "ramp", 5*time.Second, "the time within which the agents begin")
	f.DurationVar(&o.Jitter, "beat-jitter", 0, "each beat is held back by up to so much")
	f.IntVar(&o.Parallel, "parallel", o.Parallel, "launches at once")
	f.IntVar(&o.Connections, "connections", o.Connections, "connections of all agents together at most")
	f.StringVar(&o.Prefix, "prefix", "", "what the nodes' names begin with; random when left out")
	f.StringVar(&o.Listen, "listen", o.Listen, "IP `ADDRESS` that the server reaches the agents at, each on a free port")
	f.BoolVar(&o.Clean, "clean", false, "at the end terminate the instances and take the nodes out of the registry")
	logs.declare(f, slog.LevelError)
	return c
}

// printSecond tells how a simulation gets on; the result alone goes to standard output.
func (a *app) printSecond(s sim.Second) {
	_, _ = fmt.Fprintf(a.std.Err, "%6s  nodes %d/%d healthy  instances %d/%d running  beats %.0f/s p50 %s p99 %s  launches %.0f/s  errors %d\n",
		s.After.Truncate(time.Second), s.Healthy, s.Nodes, s.Running, s.Instances, s.Beats,
		s.BeatMedian.Round(10*time.Microsecond), s.BeatSlowest.Round(10*time.Microsecond), s.Launches, s.Errors)
}

func (a *app) printResult(w io.Writer, r *sim.Result) {
	fields(
		w, a.painter(),
		"prefix", r.Prefix, "lasted", fmt.Sprintf("%.1fs", r.Seconds),
		"nodes", byStatus(muster.NodeStatuses(), r.Nodes), "instances", byStatus(muster.InstanceStatuses(), r.Instances),
		"terminations", fmt.Sprint(r.Terminations), "errors", fmt.Sprint(r.Errors), "last error", r.LastError,
	)
	_, _ = fmt.Fprintln(w)
	t := &table{}
	t.add("CALLS", "COUNT", "A SECOND", "P50", "P99", "MAX")
	for _, row := range []struct {
		name  string
		calls sim.Calls
	}{{"beat", r.Beats}, {"launch", r.Launches}, {"launch to RUNNING", r.Starts}} {
		c := row.calls
		t.add(row.name, fmt.Sprint(c.Count), fmt.Sprintf("%.1f", float64(c.Count)/r.Seconds), millis(c.Median), millis(c.P99), millis(c.Most))
	}
	t.print(w)
}

// byStatus writes how many are in each status, in the order of the statuses.
func byStatus[S ~string](order []S, counts map[S]int) string {
	var parts []string
	for _, status := range order {
		if n := counts[status]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, status))
		}
	}
	return strings.Join(parts, ", ")
}

func millis(ms float64) string {
	return time.Duration(ms * float64(time.Millisecond)).Round(10 * time.Microsecond).String()
}
