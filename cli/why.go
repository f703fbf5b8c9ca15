package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const whyLong = `Say in plain words why an instance, a service or a node is as it is, and what to do: what
was observed, what its checks say, why no node takes it, and its last changes. Of what is
gone it says what the change log still has.`

const whyExamples = `  muster why svc-1
  muster why i-7
  muster why web-1`

// whyChanges is how many of the last changes are shown.
const whyChanges = 8

// answer is what is said of one object.
type answer struct {
	ID      string          `json:"id"`
	Kind    string          `json:"kind"` // instance, service or node
	Well    bool            `json:"well"` // nothing speaks against it
	Summary string          `json:"summary"`
	Because []string        `json:"because"`
	Advice  []string        `json:"advice"`
	Changes []client.Change `json:"changes"` // newest first
}

func (w *answer) because(format string, args ...any) {
	w.Because = append(w.Because, strings.TrimSuffix(fmt.Sprintf(format, args...), ": "))
}

func (w *answer) advise(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.Advice, text) {
		w.Advice = append(w.Advice, text)
	}
}

func (a *app) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "why INSTANCE|SERVICE|NODE", Short: "Say why something is not healthy, or waits, and what to do", Long: whyLong, Example: whyExamples,
		Args: exactly(1, "the id of an instance, a service or a node"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := muster.CheckID("id", args[0]); err != nil {
				return err
			}
			api, err := a.connect()
			if err != nil {
				return err
			}
			w, err := why(c.Context(), api, args[0])
			if err != nil {
				return err
			}
			return a.write(w, func(out io.Writer) { a.printAnswer(out, w) })
		},
	}
}

// why finds out what there is to say of an id.
func why(ctx context.Context, api *client.Client, id string) (*answer, error) {
	w := &answer{ID: id, Because: []string{}, Advice: []string{}, Changes: []client.Change{}}
	explain := w.node
	switch {
	case isService(id):
		explain = w.service
	case isInstance(id):
		explain = w.instance
	}
	err := explain(ctx, api)
	if muster.CodeOf(err) == muster.NotFound {
		return w, w.gone(ctx, api, err)
	}
	if err != nil {
		return nil, err
	}
	changes, err := api.NewestChanges(ctx, id, whyChanges)
	w.Changes = append(w.Changes, changes...)
	return w, err
}

// isInstance tells the id of an instance from that of anything else. A node may have such a
// name all the same.
func isInstance(id string) bool {
	number, ok := strings.CutPrefix(id, "i-")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// gone says what the change log still has of what the registry has no more; missing is
// returned when that is nothing.
func (w *answer) gone(ctx context.Context, api *client.Client, missing error) error {
	in := client.ChangesInput{ObjectID: w.ID, First: muster.MaxPage}
	for {
		page, err := api.Changes(ctx, in)
		if err != nil {
			return err
		}
		for _, edge := range page.Edges {
			w.Changes = append(w.Changes, edge.Node)
		}
		w.Changes = w.Changes[max(len(w.Changes)-whyChanges, 0):]
		if !page.PageInfo.HasNextPage || len(page.Edges) == 0 {
			break
		}
		in.Since = page.Edges[len(page.Edges)-1].Cursor
	}
	if len(w.Changes) == 0 {
		return missing
	}
	slices.Reverse(w.Changes)
	last := w.Changes[0]
	w.Kind = strings.ToLower(string(last.Kind))
	w.Summary = fmt.Sprintf("%s is gone since %s; this is what the change log still has of it", w.ID, last.At.Local().Format(time.DateTime))
	w.because("%s: %s, by %s", last.Status, last.Reason, last.Actor)
	for _, c := range w.Changes { // what went before is why
		if failed(c.Status) {
			w.because("%s before that: %s", c.Status, c.Reason)
			break
		}
	}
	return nil
}

// failed tells the statuses that nobody asked for.
func failed(status string) bool {
	return slices.Contains([]string{string(muster.Failed), string(muster.Lost), string(muster.ServiceRestarting), string(muster.Unhealthy)}, status)
}

func (a *app) printAnswer(w io.Writer, said *answer) {
	color := a.painter()
	_, _ = fmt.Fprintln(w, oneLine(said.Summary))
	for _, text := range said.Because {
		for n, line := range strings.Split(text, "\n") {
			indent := "  because "
			if n > 0 {
				indent = "          "
			}
			_, _ = fmt.Fprintln(w, indent+oneLine(line))
		}
	}
	for _, text := range said.Advice {
		_, _ = fmt.Fprintln(w, "  do:     "+oneLine(text))
	}
	if len(said.Changes) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "\nits last changes, newest first:")
	t := &table{paint: color, whole: []int{0, 1, 2}}
	t.add("AT", "FROM", "TO", "BY", "REASON")
	for _, c := range said.Changes {
		t.add(c.At.Local().Format(time.DateTime), c.PreviousStatus, c.Status, c.Actor, c.Reason)
	}
	t.print(w)
}
