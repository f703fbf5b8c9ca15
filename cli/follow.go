package cli

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// listLong is what the help of every list says.
const listLong = `

With --watch, after the table follows a line for each change, until Ctrl-C. A lost
connection is made again and no change is missed. With -o json each event is one
line then, as muster watch has it; with -o yaml it is one document.`

// following is a list that goes on with its changes.
type following struct {
	table *table // with its header
	watch func(c *client.Client, o client.WatchOptions, each func(client.Event) error) error
	row   func(t *table, e client.Event) // adds the row of an event
}

func watchFlag(f *pflag.FlagSet, watch *bool) {
	f.BoolVarP(watch, "watch", "w", false, "go on with a line for each change")
}

// follow prints a list as it is and then each change until ctx ends.
func (a *app) follow(ctx context.Context, f following) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	o := client.WatchOptions{StartOver: true}
	a.tellOfLoss(&o)
	complete := false // the list is printed
	err = f.watch(c, o, func(e client.Event) error {
		if a.format != formatTable {
			return a.printEvent(e)
		}
		switch e.Type {
		case muster.EventSynced:
			complete = true
		case client.EventRestart:
			if complete { // else nothing was printed yet
				a.say("the server no longer knows what changed in between; here is how it is now")
			}
			complete = false
			f.table.drop()
		}
		f.row(f.table, e)
		if complete {
			f.table.print(a.std.Out)
		}
		return nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// reserve keeps room for the longest words that a table's columns will have: the rows of
// changes come after its header.
func (t *table) reserve(words map[int]string) *table {
	t.least = map[int]int{}
	for column, word := range words {
		t.least[column] = len(word)
	}
	return t
}

const isGone = " (gone)"

// gone marks what no longer belongs to a list.
func gone(e client.Event) string {
	if e.Left {
		return isGone
	}
	return ""
}
