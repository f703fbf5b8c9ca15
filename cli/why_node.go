package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// node says why a node is as it is.
func (w *answer) node(ctx context.Context, api *client.Client) error {
	n, err := api.Node(ctx, w.ID)
	if err != nil {
		return err
	}
	w.Kind = "node"
	w.Summary = fmt.Sprintf("node %s is %s for %s", n.ID, n.Status, ago(time.Now(), n.StatusSince))
	switch n.Status {
	case muster.Healthy:
		w.Well = n.Schedulable
		if n.Schedulable {
			w.because("its agent beats, and it takes instances")
		}
	case muster.Unhealthy:
		w.silent(n)
		w.advise("look at its agent on %s, such as with: systemctl status muster-agent", n.Hostname)
		w.advise("see what the machine lacks, there: muster doctor")
		w.advise("see whether it is cut off: from there, ask for the server's /healthz")
	default:
		w.because("%s", n.StatusReason)
		w.advise("start its agent again, and it joins as itself; or forget it: muster node forget %s", n.ID)
	}
	switch {
	case n.Drain != nil:
		w.because("it is drained since %s, and takes no instances", moment(&n.Drain.Since))
		w.advise("let it take instances again: muster node uncordon %s", n.ID)
	case !n.Schedulable:
		w.because("it is cordoned, and takes no instances")
		w.advise("let it take instances again: muster node uncordon %s", n.ID)
	}
	return nil
}

// silent says what was observed of a node that is not heard of.
func (w *answer) silent(n *client.Node) {
	e := n.UnhealthyBecause
	if e == nil {
		w.because("%s", n.StatusReason)
		return
	}
	w.because("%s", e.Reason)
	if e.Silence != nil {
		text := fmt.Sprintf("it was last heard of %s ago", span(e.Silence.Round(time.Second)))
		if e.MissedBeats != nil {
			text += fmt.Sprintf(", and %s were due since", counted(*e.MissedBeats, "beat"))
		}
		w.because("%s", text)
	}
}
