package cli

import (
	"fmt"
	"io"

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

// suggest has the words of other programs answered with those of muster.
func suggest(root *cobra.Command) {
	others := map[string][]string{
		"list": {"ls", "get", "ps"}, "show": {"describe", "inspect", "get", "status"},
		"launch": {"run", "create"}, "terminate": {"rm", "delete", "remove", "kill", "destroy"}, "remove": {"rm", "delete"},
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
