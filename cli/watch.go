package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const watchLong = `Follow the health of the cluster: first how everything is, then every change, until
Ctrl-C. A lost connection is made again and nothing is missed or told twice. At
the end it says where it was: --since CURSOR goes on from there another time.

With -o json each event is one line; with -o yaml it is one document.`

const watchExamples = `  muster watch
  muster watch --kind node
  muster watch --instance i-7 --from-now -o json
  muster watch --service svc-1`

// watchFlags are what `watch` can be told.
type watchFlags struct {
	since, node, instance, service string
	kinds                          []string
	fromNow                        bool
}

func (a *app) watchCommand() *cobra.Command {
	var flags watchFlags
	c := &cobra.Command{
		Use: "watch", Short: "Follow the health of nodes, instances and services", Long: watchLong, Example: watchExamples,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := flags.filter()
			if err != nil {
				return err
			}
			return a.watch(c.Context(), filter, client.WatchOptions{Since: flags.since, FromNow: flags.fromNow})
		},
	}
	f := c.Flags()
	f.StringVar(&flags.since, "since", "", "go on after this `CURSOR`")
	f.BoolVar(&flags.fromNow, "from-now", false, "leave out how everything is at the beginning")
	f.StringSliceVar(&flags.kinds, "kind", nil, "only of this `KIND`: node, instance, service or cluster; may be repeated")
	f.StringVar(&flags.node, "node", "", "only this `NODE` and what is on it, by id or uid")
	f.StringVar(&flags.instance, "instance", "", "only this `INSTANCE`, its services and its node")
	f.StringVar(&flags.service, "service", "", "only this `SERVICE`, its instance and its node")
	return c
}

// filter returns the flags as the API wants them.
func (f *watchFlags) filter() (*muster.HealthFilter, error) {
	filter := &muster.HealthFilter{NodeID: given(f.node)}
	for _, word := range f.kinds {
		kind := muster.ChangeKind(strings.ToUpper(word))
		switch kind {
		case muster.KindNode, muster.KindInstance, muster.KindService, muster.KindCluster:
			filter.Kinds = append(filter.Kinds, kind)
		default:
			return nil, usageError("--kind %s is no kind; give node, instance, service or cluster", quote(word))
		}
	}
	if f.instance != "" {
		id := muster.InstanceID(f.instance)
		filter.InstanceID = &id
	}
	if f.service != "" {
		filter.ServiceID = new(muster.ServiceID(f.service))
	}
	return filter, nil
}

// watch prints events until ctx ends, and then where it was.
func (a *app) watch(ctx context.Context, filter *muster.HealthFilter, o client.WatchOptions) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	a.tellOfLoss(&o)
	last := o.Since
	err = api.WatchHealth(ctx, filter, o, func(e client.Event) error {
		if e.Cursor != "" {
			last = e.Cursor
		}
		return a.printEvent(e)
	})
	if last != "" && ctx.Err() != nil {
		a.say("stopped; go on with --since %s", last)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// tellOfLoss has a watch say when its connection is lost, once, and when it is
// there again.
func (a *app) tellOfLoss(o *client.WatchOptions) {
	lost := false
	o.OnDisconnect = func(err error, pause time.Duration) {
		if !lost {
			a.say("no connection (%s); trying again until there is one", oneLine(err.Error()))
		}
		lost = true
	}
	o.OnConnect = func() {
		if lost {
			a.say("connected")
		}
		lost = false
	}
}

// say tells a person something beside the results.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintf(a.std.Err, "muster: "+format+"\n", args...)
}

func (a *app) printEvent(e client.Event) error {
	switch a.format {
	case formatJSON:
		encoder := json.NewEncoder(a.std.Out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(e)
	case formatYAML:
		if _, err := fmt.Fprintln(a.std.Out, "---"); err != nil {
			return err
		}
		return writeYAML(a.std.Out, e)
	}
	return a.printEventLine(e)
}

// printEventLine prints an event for people; what only moves the cursor is left out.
func (a *app) printEventLine(e client.Event) error {
	if e.Type == muster.EventProgress {
		return nil
	}
	if e.Type == muster.EventSynced {
		a.say("up to date at revision %d; following", e.Revision)
		return nil
	}
	if e.Type == client.EventRestart {
		a.say("the connection broke before everything was told; from the beginning")
		return nil
	}
	color := a.painter()
	status := color(e.Status)
	if e.PreviousStatus != "" && e.PreviousStatus != e.Status {
		status = color(e.PreviousStatus) + " -> " + status
	}
	if e.Service != nil && !e.Left {
		status += ", " + color(string(e.Service.ReportedHealth))
	}
	if e.Left {
		status += " (gone)"
	}
	line := fmt.Sprintf("%s  %-8s  %-10s  %s", e.At.Local().Format(time.TimeOnly), e.Kind, nameOf(e), status)
	if e.Reason != "" {
		line += "  " + oneLine(e.Reason)
	}
	if e.Condition != nil && e.Condition.Until != nil {
		line += "; until " + e.Condition.Until.Local().Format(time.TimeOnly) + " at the latest"
	}
	_, err := fmt.Fprintln(a.std.Out, line)
	return err
}

// nameOf is what people call the object of an event.
func nameOf(e client.Event) string {
	if e.Node != nil {
		return string(e.Node.ID)
	}
	return e.ObjectID
}
