package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const clusterHealthLong = `Show how the cluster is: how many nodes and instances are in each status, what is
out of the ordinary about the cluster itself, and the brake, which keeps nodes from
being pruned while so many of them are silent that the fault is likely elsewhere.

The exit code is 0 when the cluster is HEALTHY and 8 when it is DEGRADED.`

func (a *app) clusterCommand() *cobra.Command {
	return group("cluster", "The cluster as a whole", a.clusterHealthCommand())
}

func (a *app) clusterHealthCommand() *cobra.Command {
	return &cobra.Command{
		Use: "health", Short: "Show how the cluster is", Long: clusterHealthLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.clusterHealth(c.Context()) },
	}
}

func (a *app) clusterHealth(ctx context.Context) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	h, err := c.ClusterHealth(ctx)
	if err != nil {
		return err
	}
	if err := a.write(h, func(w io.Writer) { a.printHealth(w, h) }); err != nil {
		return err
	}
	if h.Status != muster.ClusterHealthy {
		return exitStatus(exitDegraded)
	}
	return nil
}

func (a *app) printHealth(w io.Writer, h *client.ClusterHealth) {
	now := time.Now()
	fields(
		w, a.painter(),
		"status", string(h.Status), "nodes", tally(h.Nodes), "instances", tally(h.Instances),
		"brake", brakeText(now, &h.Brake), "revision", strconv.FormatInt(h.Revision, 10),
	)
	if len(h.Conditions) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w)
	t := &table{paint: a.painter()}
	t.add("CONDITION", "SINCE", "ENDS", "REASON")
	for _, c := range h.Conditions {
		t.add(string(c.Name), since(now, &c.Since), until(now, c.Until), c.Reason)
	}
	t.print(w)
}

// tally writes how many are in each status.
func tally(counts []client.StatusCount) string {
	if len(counts) == 0 {
		return "none"
	}
	parts := make([]string, len(counts))
	for k, c := range counts {
		parts[k] = fmt.Sprintf("%d %s", c.Count, c.Status)
	}
	return strings.Join(parts, ", ")
}

// brakeText is the brake in a line; what it says about itself stands with the
// conditions while it holds.
func brakeText(now time.Time, b *client.Brake) string {
	text := string(b.State)
	if b.State != muster.Holds {
		return text + ": " + b.Reason
	}
	if b.Since != nil {
		text += ", since " + since(now, b.Since)
	}
	if b.ReleasesAt != nil {
		text += ", releases itself " + until(now, b.ReleasesAt)
	}
	return text
}

// until says in how long something is; empty when that is not known.
func until(now time.Time, t *time.Time) string {
	switch {
	case t == nil:
		return ""
	case !t.After(now):
		return "now"
	}
	return "in " + ago(*t, now)
}

// evidence is what was observed of something that is not healthy, as fields; its
// reason only where the status has another one.
func evidence(e *client.Evidence, reason string) []string {
	if e == nil {
		return nil
	}
	out := []string{"last beat", moment(e.LastBeat)}
	if e.Reason != reason {
		out = append([]string{"unhealthy because", e.Reason}, out...)
	}
	if e.Silence != nil {
		out = append(out, "silence", e.Silence.Round(100*time.Millisecond).String())
	}
	out = append(out, "missed beats", number(e.MissedBeats))
	if e.ClockSkew != nil {
		out = append(out, "clock skew", skew(*e.ClockSkew))
	}
	return out
}

// skew is how a node's clock differs from the server's.
func skew(d time.Duration) string {
	if d < 0 {
		return (-d).Round(time.Millisecond).String() + " behind the server's"
	}
	return d.Round(time.Millisecond).String() + " ahead of the server's"
}
