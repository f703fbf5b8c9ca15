package cli

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const manLong = `Write the manual pages of every command to a directory, one file each, which it makes
if need be: muster.1, muster-node-list.1 and so on. Pages of the same names there are
replaced.

    man -l DIRECTORY/muster.1
    # for everybody:
    muster man /usr/local/share/man/man1`

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIRECTORY", Short: "Write the manual pages to a directory", Long: manLong, Args: exactly(1, "a directory"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return usageError("the manual pages cannot be written: %w; give a directory that can be", err)
			}
			for c := range tree(c.Root()) {
				if !hasPage(c) {
					continue
				}
				if err := renameio.WriteFile(filepath.Join(args[0], pageOf(c)+".1"), []byte(manPage(c)), 0o644); err != nil {
					return usageError("the manual pages cannot be written: %w; give a directory that can be", err)
				}
			}
			return nil
		},
	}
}

// hasPage tells whether people call a command, or may ask what it is.
func hasPage(c *cobra.Command) bool {
	return !c.HasParent() || c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand()
}

// pageOf is the name of a command's manual page.
func pageOf(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns the manual page of a command, in the macros of man(7).
func manPage(c *cobra.Command) string {
	c.InitDefaultHelpFlag()
	var r roff
	r.line(".TH %s 1 \"\" %s muster", quoted(strings.ToUpper(pageOf(c))), quoted("muster "+version))
	r.section("NAME")
	r.line("%s \\- %s", escape(pageOf(c)), escape(c.Short))
	r.section("SYNOPSIS")
	r.line(".B %s", escape(usageLine(c)))
	r.section("DESCRIPTION")
	r.text(cmp.Or(c.Long, c.Short))
	r.commands(c)
	if c.Example != "" {
		r.section("EXAMPLES")
		r.literal(c.Example)
	}
	r.flags("OPTIONS", c.LocalNonPersistentFlags())
	r.flags("OPTIONS OF EVERY COMMAND", sharedFlags(c))
	if !c.HasParent() {
		r.section("ENVIRONMENT")
		r.text("A variable in brackets behind an option is another way to give it. The option counts more; an empty variable counts as not set. NO_COLOR, when it is not empty, does what --no-color does.")
		r.section("EXIT STATUS")
		r.literal(exitCodesText)
	}
	r.related(c)
	return r.String()
}

// roff is a manual page in the making.
type roff struct{ strings.Builder }

func (r *roff) line(format string, args ...any) { fmt.Fprintf(r, format+"\n", args...) }

func (r *roff) section(title string) { r.line(".SH %s", quoted(title)) }

// text writes paragraphs; lines that are indented are kept as they are.
func (r *roff) text(text string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		r.line(".PP")
		if strings.HasPrefix(paragraph, "    ") {
			r.literal(paragraph)
			continue
		}
		for line := range strings.SplitSeq(paragraph, "\n") {
			r.line("%s", escape(line))
		}
	}
}

// literal writes lines as they are.
func (r *roff) literal(text string) {
	r.line(".nf")
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		r.line("%s", escape(line))
	}
	r.line(".fi")
}

// commands lists those below a command.
func (r *roff) commands(c *cobra.Command) {
	titled := false
	for _, sub := range c.Commands() {
		if !hasPage(sub) {
			continue
		}
		if !titled {
			r.section("COMMANDS")
			titled = true
		}
		r.line(".TP\n\\fB%s\\fR(1)\n%s", escape(pageOf(sub)), escape(sub.Short))
	}
}

func (r *roff) flags(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	r.section(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			r.line(".TP\n\\fB%s\\fR\n%s", escape(strings.TrimSpace(flagName(f))), escape(flagText(f)))
		}
	})
}

// related names the page above, and the one that all have to do with.
func (r *roff) related(c *cobra.Command) {
	if !c.HasParent() {
		return
	}
	r.section("SEE ALSO")
	r.line("\\fB%s\\fR(1)", escape(pageOf(c.Parent())))
	if c.Parent().HasParent() {
		r.line("\\fBmuster\\fR(1)")
	}
}

// escape keeps text from being taken for a request or a dash that breaks.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "~", `\(ti`, "^", `\(ha`, "`", `\(ga`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// quoted is one argument of a macro.
func quoted(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\(dq`) + `"` }
