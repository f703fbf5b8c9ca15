package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (a *app) nodeDrainCommand() *cobra.Command {
	var in muster.DrainNodeInput
	var deadline time.Duration
	var w waitFlags
	c := &cobra.Command{
		Use: "drain NODE", Short: "Let a node's instances end, and stop the rest at a deadline", Args: exactly(1, "a node's id or uid"),
		Example: "  muster node drain web-1 --deadline 10m --wait\n  muster node uncordon web-1   # cancels it",
		RunE: func(c *cobra.Command, args []string) error {
			in.ID = args[0]
			if c.Flags().Changed("deadline") {
				in.Deadline = &deadline
			}
			return a.drain(c.Context(), in, w)
		},
	}
	c.Flags().DurationVar(&deadline, "deadline", 0, "how long instances may take to end by themselves; 0s: stop them now; left out: as long as it takes")
	c.Flags().StringVar(&in.Reason, "reason", "", "why, for those who look later")
	w.declare(c.Flags())
	return c
}

func (a *app) drain(ctx context.Context, in muster.DrainNodeInput, w waitFlags) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	n, err := api.DrainNode(ctx, in)
	if err != nil {
		return err
	}
	if w.wanted {
		if n, err = a.awaitDrained(ctx, api, n, w.timeout); err != nil {
			return err
		}
	}
	return a.write(n, func(out io.Writer) { a.printNodes(out, []*client.Node{n}) })
}

// drainText is how far a drain has come; empty: there is none.
func drainText(d *client.Drain) string {
	switch {
	case d == nil:
		return ""
	case d.Done != nil:
		return "done at " + moment(d.Done) + "; muster node uncordon ends it"
	case d.Deadline == nil:
		return "until nothing runs, since " + d.Since.Format(time.RFC3339)
	case d.Stopping:
		return "stopping what still runs: its deadline was " + moment(d.Deadline)
	default:
		return "until nothing runs, at most until " + moment(d.Deadline) + ", since " + d.Since.Format(time.RFC3339)
	}
}

// awaitDrained follows a node until nothing runs on it, the drain is cancelled,
// or the time is up, and tells each step.
func (a *app) awaitDrained(ctx context.Context, api *client.Client, n *client.Node, timeout time.Duration) (*client.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	uid := n.UID
	err := api.WatchNodes(ctx, nil, client.WatchOptions{}, func(e client.Event) error {
		if e.Node == nil || e.Node.UID != uid {
			return nil
		}
		n = e.Node
		if e.Type == muster.EventChange {
			_, _ = fmt.Fprintf(a.std.Err, "%s: %s\n", n.ID, oneLine(e.Reason))
		}
		if e.Left || n.Drain == nil || n.Drain.Done != nil {
			return errDecided
		}
		return nil
	})
	switch {
	case errors.Is(err, errDecided) && n.Drain != nil && n.Drain.Done != nil:
		return n, nil
	case errors.Is(err, errDecided):
		return n, &waitError{fmt.Sprintf("the drain of %s was cancelled; drain it again to go on", n.ID)}
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return n, &waitError{fmt.Sprintf("%s is not drained after %s; it goes on in the background, see muster node show %s", n.ID, span(timeout), n.ID)}
	}
	return n, err
}
