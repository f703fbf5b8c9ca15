package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const registrationWatchLong = `Follow the discovery feed: first a REGISTER for each entry that is there, then one for
each that is registered or changed, and a REMOVE, with the reason and the whole entry as it
was, for each that goes. Refreshes are not told.

A lost connection is made again and nothing is missed or told twice. At the end it says
where it was: --since CURSOR goes on from there another time. With -o json each event is
one line; with -o yaml it is one document.`

func (a *app) registrationWatchCommand() *cobra.Command {
	which := registrationNarrowing()
	var o client.WatchOptions
	c := &cobra.Command{
		Use: "watch", Short: "Follow what is registered and removed", Long: registrationWatchLong, Args: exactly(0, "no arguments"),
		Example: "  muster registration watch --service web\n  muster registration watch --from-now -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			return a.watchRegistrations(c.Context(), filter, o)
		},
	}
	which.declare(c.Flags())
	c.Flags().StringVar(&o.Since, "since", "", "go on after this `CURSOR`")
	c.Flags().BoolVar(&o.FromNow, "from-now", false, "leave out what is registered at the beginning")
	return c
}

// watchRegistrations prints events until ctx ends, and then where it was.
func (a *app) watchRegistrations(ctx context.Context, filter *muster.RegistrationFilter, o client.WatchOptions) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	a.tellOfLoss(&o)
	last := o.Since
	err = api.WatchRegistrations(ctx, filter, o, func(e client.Event) error {
		if e.Cursor != "" {
			last = e.Cursor
		}
		return a.printFeedEvent(e)
	})
	if last != "" && ctx.Err() != nil {
		a.say("stopped; go on with --since %s", last)
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// feedEvent is an event of the feed with what happened to the entry.
type feedEvent struct {
	Action string `json:"action,omitempty"` // REGISTER or REMOVE; empty: no entry is told of
	client.Event
}

func actionOf(e client.Event) string {
	switch {
	case e.Registration == nil:
		return ""
	case e.Left:
		return "REMOVE"
	}
	return "REGISTER"
}

func (a *app) printFeedEvent(e client.Event) error {
	told := feedEvent{Action: actionOf(e), Event: e}
	switch {
	case a.format == formatJSON:
		encoder := json.NewEncoder(a.std.Out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(told)
	case a.format == formatYAML:
		if _, err := fmt.Fprintln(a.std.Out, "---"); err != nil {
			return err
		}
		return writeYAML(a.std.Out, told)
	case told.Action == "":
		return a.printEventLine(e) // or says it beside
	}
	r := e.Registration
	reason := e.Reason
	if reason == string(muster.EntryRegistered) { // as the action says
		reason = ""
	}
	line := fmt.Sprintf("%s  %-8s  %-20s  %-21s  priority %s", e.At.Local().Format(time.TimeOnly), told.Action,
		r.Cluster+"/"+r.Protocol+"/"+r.Service, reachedAt(r), strconv.Itoa(r.Priority))
	for _, more := range []struct{ name, value string }{
		{"ttl ", shortDuration(r.Ttl)}, {"from ", publisherOf(r)}, {"", annotationsOf(r)}, {"because: ", reason},
	} {
		if more.value != "" {
			line += "  " + more.name + more.value
		}
	}
	if r.Stale && !e.Left {
		line += "  " + a.painter()(string(muster.EntryStale))
	}
	_, err := fmt.Fprintln(a.std.Out, oneLine(line))
	return err
}
