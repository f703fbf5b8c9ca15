package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// printUsage prints how a command is used: its line, its commands, examples and flags.
func (a *app) printUsage(c *cobra.Command) error {
	w, most := c.OutOrStderr(), 0 // which may be a buffer on the way to standard output
	if isTerminal(a.std.Out) {
		most = columnsOf(a.std.Out)
	}
	_, _ = fmt.Fprintf(w, "Usage:\n  %s\n", usageLine(c))
	section(w, "Commands", describeCommands(c, "", (*cobra.Command).IsAvailableCommand, most))
	if len(c.Aliases) > 0 {
		section(w, "Aliases", "  "+strings.Join(c.Aliases, ", "))
	}
	section(w, "Examples", c.Example)
	section(w, "Flags", describeFlags(c.LocalNonPersistentFlags(), most))
	section(w, "Flags of every command", describeFlags(sharedFlags(c), most))
	section(w, "Further help", describeCommands(c, c.CommandPath()+" help ", (*cobra.Command).IsAdditionalHelpTopicCommand, most))
	return nil
}

// usageLine is how a command is called.
func usageLine(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

// suggestions are the commands that somebody may have meant by a word: those below c, or at
// the top the ones of that name further below.
func suggestions(c *cobra.Command, word string) []string {
	c.SuggestionsMinimumDistance = max(min(len(word)/2, 2), 1) // of a short word everything is near
	similar := c.SuggestionsFor(word)
	if len(similar) > 0 || c.HasParent() {
		slices.Sort(similar)
		return slices.Compact(similar) // one may be there twice
	}
	const most = 4
	var exact, others []string
	for _, group := range c.Commands() {
		for _, sub := range group.Commands() {
			switch {
			case sub.Name() == word:
				exact = append(exact, sub.CommandPath())
			case slices.Contains(sub.SuggestFor, word):
				others = append(others, sub.CommandPath())
			}
		}
	}
	all := append(exact, others...)
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return all[:min(len(all), most)]
}

// rank is which kind of object a command is likely meant for, when it could be several.
func rank(path string) int {
	likely := []string{"muster cluster", "muster instance", "muster service", "muster node"}
	at := slices.IndexFunc(likely, func(group string) bool { return strings.HasPrefix(path, group+" ") })
	if at < 0 {
		return len(likely)
	}
	return at
}

// suggest has the words of other programs answered with those of muster.
func suggest(root *cobra.Command) {
	others := map[string][]string{
		"list": {"ls", "get", "ps"}, "show": {"describe", "inspect", "get", "status"}, "query": {"list", "ls", "show", "get"},
		"launch": {"run", "create"}, "terminate": {"rm", "delete", "kill", "destroy"}, "remove": {"rm", "delete"},
		"health": {"status"}, "completion": {"completions"},
	}
	for c := range tree(root) {
		c.SuggestFor = others[c.Name()]
	}
}

// sharedFlags are those that a command shares with the others.
func sharedFlags(c *cobra.Command) *pflag.FlagSet {
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	shared.AddFlagSet(c.PersistentFlags())
	shared.AddFlagSet(c.InheritedFlags())
	return shared
}

func section(w io.Writer, title, text string) {
	if text != "" {
		_, _ = fmt.Fprintf(w, "\n%s:\n%s\n", title, text)
	}
}

// describeCommands lists the commands below c that are wanted, each behind a prefix.
func describeCommands(c *cobra.Command, prefix string, wanted func(*cobra.Command) bool, most int) string {
	var names, texts []string
	for _, sub := range c.Commands() {
		if wanted(sub) {
			names = append(names, prefix+sub.Name())
			texts = append(texts, sub.Short)
		}
	}
	return columns(names, texts, most)
}
