package cli

import (
	"context"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (a *app) registrationCommand() *cobra.Command {
	return group("registration", "The discovery feed: where services are reached",
		a.registrationQueryCommand(), a.registrationWatchCommand(), a.registrationAddCommand(), a.registrationRemoveCommand(),
		a.registrationPrometheusCommand())
}

func registrationNarrowing() *narrowing[muster.RegistrationFilter] {
	type filter = muster.RegistrationFilter
	return &narrowing[filter]{criteria: []criterion[filter]{
		{key: "cluster", flag: "only in this `NAME`", add: func(f *filter, v string) { f.Cluster = v }},
		{key: "protocol", flag: "only of this `WORD`", add: func(f *filter, v string) { f.Protocol = v }},
		{key: "service", flag: "only of this `NAME`", add: func(f *filter, v string) { f.Service = v }},
		{key: "address", flag: "only at this `ADDRESS`", add: func(f *filter, v string) { f.Address = v }},
	}}
}

const registrationQueryLong = `Look up what is registered in the discovery feed: this cluster's own entries and those of
others, in order of their addresses. The value of a filter can be *, which is any.

When the feed cannot be reached, what others registered is what was known last: the
command says so, and of when it is.`

const registrationQueryExamples = `  muster registration query --cluster prod --service web
  muster registration query --filter protocol=http,address=10.0.0.5 -o json
  muster registration query --service db --preferred`

func (a *app) registrationQueryCommand() *cobra.Command {
	which, preferred := registrationNarrowing(), false
	c := &cobra.Command{
		Use: "query", Short: "Look up what is registered", Long: registrationQueryLong, Example: registrationQueryExamples,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			return a.queryRegistrations(c.Context(), *filter, preferred)
		},
	}
	which.declare(c.Flags())
	c.Flags().BoolVar(&preferred, "preferred", false, "only the best priority level that is healthy")
	return c
}

func (a *app) queryRegistrations(ctx context.Context, f muster.RegistrationFilter, preferred bool) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	found, err := api.Registrations(ctx, f, preferred)
	if err != nil {
		return err
	}
	if !found.Complete {
		a.say("not complete: the feed cannot be reached, and what others registered is as of %s, %s ago",
			found.AsOf.Format(time.RFC3339), ago(time.Now(), found.AsOf))
	}
	return a.write(found, func(w io.Writer) { a.printEntries(w, found.Entries...) })
}

func (a *app) printEntries(w io.Writer, entries ...*client.Entry) {
	t := &table{paint: a.painter(), whole: []int{3}}
	t.add("CLUSTER", "PROTOCOL", "SERVICE", "ADDRESS", "PRIORITY", "STATUS", "TTL", "FROM", "AGE", "ANNOTATIONS")
	for _, e := range entries {
		t.add(e.Cluster, e.Protocol, e.Service, reachedAt(e), strconv.Itoa(e.Priority), string(e.Status), shortDuration(e.Ttl), publisherOf(e),
			ago(time.Now(), e.RegisteredAt), annotationsOf(e))
	}
	t.print(w)
}

// reachedAt is an entry's address, with its port if it has one.
func reachedAt(e *client.Entry) string {
	if e.Port == nil {
		return e.Address
	}
	return net.JoinHostPort(e.Address, strconv.Itoa(*e.Port))
}

// publisherOf is who an entry is from, for people: its services, or another cluster.
func publisherOf(e *client.Entry) string {
	switch {
	case !e.Own && e.Origin != "":
		return "cluster " + e.Origin
	case !e.Own:
		return "elsewhere"
	}
	return listed(e.Owners, "and")
}

func annotationsOf(e *client.Entry) string {
	if e.Annotations == nil {
		return ""
	}
	return pairs(*e.Annotations)
}

// entryFlags name an entry.
type entryFlags struct {
	muster.DeregisterInput
	port int
}

func (e *entryFlags) declare(f *pflag.FlagSet) {
	f.IntVar(&e.port, "port", 0, "the `PORT`, if it has one")
}

func (e *entryFlags) read(f *pflag.FlagSet, args []string) {
	e.Cluster, e.Protocol, e.Service, e.Address = args[0], args[1], args[2], args[3]
	if f.Changed("port") {
		e.Port = &e.port
	}
}

const entryArguments = "a cluster, a protocol, a service and an IP address"

const registrationAddLong = `Register an entry in the discovery feed by hand, or change one: it stays until it is removed.

A TTL is how long readers of the feed keep it after muster was last there to refresh it:
never, or a span in the units s, m, h, d, w, M (30 days) and y (365 days), such as 1d12h.`

func (a *app) registrationAddCommand() *cobra.Command {
	var entry entryFlags
	var in muster.RegisterInput
	var ttl string
	var annotations []string
	c := &cobra.Command{
		Use: "add CLUSTER PROTOCOL NAME ADDRESS", Short: "Register an entry by hand", Long: registrationAddLong,
		Example: "  muster registration add prod tcp db 10.0.0.6 --port 5432 --ttl 5m --annotation role=primary",
		Args:    exactly(4, entryArguments),
		RunE: func(c *cobra.Command, args []string) error {
			entry.read(c.Flags(), args)
			in.Cluster, in.Protocol, in.Service, in.Address, in.Port = entry.Cluster, entry.Protocol, entry.Service, entry.Address, entry.Port
			if ttl != "" {
				span, err := muster.ParseRegistrationTTL("--ttl", ttl)
				if err != nil {
					return err
				}
				in.TTL = &span
			}
			var err error
			if in.Annotations, err = readAnnotations(annotations); err != nil {
				return err
			}
			return a.onEntry(c.Context(), func(ctx context.Context, api *client.Client) (*client.Entry, error) { return api.Register(ctx, in) })
		},
	}
	f := c.Flags()
	entry.declare(f)
	in.Priority = f.Int("priority", muster.DefaultPriority, "1 to 255, lower is preferred")
	f.StringVar(&ttl, "ttl", "", "`SPAN` after which readers forget it, or never; the feed's longest when left out")
	f.StringArrayVar(&annotations, "annotation", nil, "a further fact, `KEY=VALUE`; may be repeated")
	return c
}

// readAnnotations reads each as it is: a value may have commas and quotes.
func readAnnotations(texts []string) (muster.Map, error) {
	m := muster.Map{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if _, twice := m[key]; !ok || twice {
			return nil, usageError("--annotation %s: write KEY=VALUE, each key once", quote(text))
		}
		m[key] = value
	}
	return m, nil
}

func (a *app) registrationRemoveCommand() *cobra.Command {
	var entry entryFlags
	c := &cobra.Command{
		Use: "remove CLUSTER PROTOCOL NAME ADDRESS", Short: "Remove an entry that was registered by hand",
		Long:    "Remove an entry that was registered by hand. If it is a service's too, it stays while that is stable.",
		Example: "  muster registration remove prod tcp db 10.0.0.6 --port 5432",
		Args:    exactly(4, entryArguments),
		RunE: func(c *cobra.Command, args []string) error {
			entry.read(c.Flags(), args)
			return a.onEntry(c.Context(), func(ctx context.Context, api *client.Client) (*client.Entry, error) {
				return api.Deregister(ctx, entry.DeregisterInput)
			})
		},
	}
	entry.declare(c.Flags())
	return c
}

// onEntry does something to an entry and prints it.
func (a *app) onEntry(ctx context.Context, do func(context.Context, *client.Client) (*client.Entry, error)) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	e, err := do(ctx, api)
	if err != nil {
		return err
	}
	return a.write(e, func(w io.Writer) { a.printEntries(w, e) })
}
