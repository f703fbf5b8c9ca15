package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const logsLong = `Print what an instance has written to its console, or a service to its standard output and
error. Its node keeps the last 256 KiB of it at least, until the instance is terminated or
the service removed; what ended can be read as well.

With --follow it goes on with what is written, after a restart too, until that end or
Ctrl-C. A lost connection is made again, and nothing is printed twice.

On a terminal, control characters are replaced; --raw prints them as they came. With
-o json each piece is one line; with -o yaml it is one document.`

const logsExamples = `  muster logs i-7
  muster logs -f --tail 20 svc-1`

// logsFlags are what `logs` can be told.
type logsFlags struct {
	follow, raw bool
	tail        int
	after       string
}

// logsCommand is for one kind of thing, INSTANCE or SERVICE, or for both.
func (a *app) logsCommand(of string) *cobra.Command {
	var flags logsFlags
	what := map[string]string{"INSTANCE": "an instance's id, such as i-1", "SERVICE": aService}[of]
	if what == "" {
		what = "the id of an instance or a service, such as i-1"
	}
	c := &cobra.Command{
		Use: "logs " + of, Short: "Print what an instance writes to its console, or a service to its output", Long: logsLong, Example: logsExamples,
		Args: exactly(1, what),
		RunE: func(c *cobra.Command, args []string) error {
			o := client.LogOptions{Follow: flags.follow, After: flags.after}
			if c.Flags().Changed("tail") {
				o.Tail = &flags.tail
			}
			return a.logs(c.Context(), logOf{args[0], of == "SERVICE" || isService(args[0])}, o, flags.raw)
		},
	}
	f := c.Flags()
	f.BoolVarP(&flags.follow, "follow", "f", false, "go on with what it writes, until it is gone for good")
	f.IntVarP(&flags.tail, "tail", "n", 0, "begin so many `LINES` before the end; all that is kept when left out")
	f.StringVar(&flags.after, "after", "", "go on after this `PLACE`, as -o json has it")
	f.BoolVar(&flags.raw, "raw", false, "print control characters on a terminal too")
	return c
}

// logOf says whose log.
type logOf struct {
	id      string
	service bool
}

// logs prints a log to its end, or until ctx ends.
func (a *app) logs(ctx context.Context, of logOf, o client.LogOptions, raw bool) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	lost := false
	if o.Follow {
		o.OnDisconnect = func(err error, _ time.Duration) {
			if !lost {
				a.say("%s; going on when it can", oneLine(err.Error()))
			}
			lost = true
		}
	}
	raw = raw || !isTerminal(a.std.Out)
	generation, dropped, said := int64(0), int64(0), time.Time{}
	err = readLogs(ctx, api, of, o, func(p muster.LogPiece) error {
		if lost {
			a.say("going on")
		}
		lost = false
		if generation != 0 && p.Generation != generation {
			a.say("%s was started again", oneLine(of.id))
		}
		generation = p.Generation
		dropped += p.Skipped
		if dropped > 0 && (p.End || time.Since(said) > time.Second) { // in a flood not at each piece
			a.say("%d bytes are left out: the node no longer had them", dropped)
			dropped, said = 0, time.Now()
		}
		return a.printPiece(p, raw)
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// isService tells the id of a service from that of anything else.
func isService(id string) bool { return strings.HasPrefix(id, "svc-") }

// readLogs reads the log of a service or an instance.
func readLogs(ctx context.Context, api *client.Client, of logOf, o client.LogOptions, each func(muster.LogPiece) error) error {
	if of.service {
		return api.ServiceLogs(ctx, muster.ServiceID(of.id), o, each)
	}
	return api.InstanceLogs(ctx, muster.InstanceID(of.id), o, each)
}

func (a *app) printPiece(p muster.LogPiece, raw bool) error {
	switch a.format {
	case formatJSON:
		encoder := json.NewEncoder(a.std.Out)
		encoder.SetEscapeHTML(false)
		return encoder.Encode(p)
	case formatYAML:
		if _, err := fmt.Fprintln(a.std.Out, "---"); err != nil {
			return err
		}
		return writeYAML(a.std.Out, p)
	}
	text := p.Text
	if !raw {
		text = safe(text, "\n\t\r")
	}
	_, err := io.WriteString(a.std.Out, text)
	return err
}
