package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const auditLong = `Show attempts to change something, newest first: who, what, when, from where, and how
it ended. Refused ones are among them; in a flood they are counted together. What agents
say of their nodes is not.`

const auditExamples = `  muster audit --refused --since 24h
  muster audit --key k-3 -o json`

// auditFlags select entries of the audit.
type auditFlags struct {
	key, action, target string
	refused, done       bool
	since               time.Duration
	most                int
}

func (a *app) auditCommand() *cobra.Command {
	var flags auditFlags
	c := &cobra.Command{
		Use: "audit", Short: "Show who changed what, and what was refused", Long: auditLong, Example: auditExamples, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.audit(c.Context(), flags) },
	}
	f := c.Flags()
	f.StringVar(&flags.key, "key", "", "only of the access `KEY`, by its id")
	f.StringVar(&flags.action, "action", "", "only the `ACTION`, such as launchInstance")
	f.StringVar(&flags.target, "target", "", "only about exactly this `TARGET`, such as i-7")
	f.BoolVar(&flags.refused, "refused", false, "only what was refused")
	f.BoolVar(&flags.done, "done", false, "only what was done")
	f.DurationVar(&flags.since, "since", 0, "only of so long ago at most")
	f.IntVar(&flags.most, "limit", 100, "how many at most; 0: all that is kept")
	return c
}

// filter is what the flags select.
func (f auditFlags) filter() (*muster.AuditFilter, error) {
	if f.refused && f.done {
		return nil, usageError("--refused and --done together leave nothing; leave one of them out, or both for everything")
	}
	if f.most < 0 || f.since < 0 {
		return nil, usageError("--limit and --since cannot be negative")
	}
	out := &muster.AuditFilter{}
	for value, field := range map[*string]**string{&f.key: &out.Key, &f.action: &out.Action, &f.target: &out.Target} {
		if *value != "" {
			*field = value
		}
	}
	if f.refused || f.done {
		out.Refused = &f.refused
	}
	if f.since > 0 {
		at := time.Now().Add(-f.since)
		out.Since = &at
	}
	return out, nil
}

func (a *app) audit(ctx context.Context, flags auditFlags) error {
	filter, err := flags.filter()
	if err != nil {
		return err
	}
	api, err := a.connect()
	if err != nil {
		return err
	}
	entries := []*client.AuditEntry{}
	for e, err := range api.AllAudit(ctx, filter) {
		if err != nil {
			return err
		}
		if entries = append(entries, e); len(entries) == flags.most {
			break
		}
	}
	return a.write(entries, func(w io.Writer) { a.printAudit(w, entries) })
}

func (a *app) printAudit(w io.Writer, entries []*client.AuditEntry) {
	t := &table{paint: a.painter(), whole: []int{0}}
	t.add("AT", "WHO", "FROM", "ACTION", "TARGET", "OUTCOME", "REASON")
	for _, e := range entries {
		who := e.Name
		if e.Key != "" {
			who = fmt.Sprintf("%s (%s)", e.Name, e.Key)
		}
		outcome := e.Outcome
		if e.Count > 1 {
			outcome += " (" + strconv.Itoa(e.Count) + " times)"
		}
		t.add(e.At.Format(time.RFC3339), who, e.Addr, e.Action, e.Target, outcome, e.Reason)
	}
	t.print(w)
}
