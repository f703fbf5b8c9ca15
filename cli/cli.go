package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster/client"
)

// Std is what a process has around it.
type Std struct {
	Program   string // as it was called
	In        io.Reader
	Out, Err  io.Writer
	LookupEnv func(name string) (string, bool)
}

// OS returns the surroundings of this process.
func OS() Std {
	return Std{Program: os.Args[0], In: os.Stdin, Out: os.Stdout, Err: os.Stderr, LookupEnv: os.LookupEnv}
}

// app is what the commands share: the surroundings and the flags of every command.
type app struct {
	std     Std
	server  string
	context string // of `muster login`; empty: the current one
	keyFile string
	caFile  string
	format  format
	timeout time.Duration
	noColor bool

	serverGiven, contextGiven bool    // as a flag, not as a variable
	aimed                     *target // nil: not yet looked for
}

// Main runs one command line, without the name of the program, and returns its
// exit code. It ends when the command has, or soon after ctx has.
func Main(ctx context.Context, args []string, std Std) int {
	a := &app{std: std, format: formatTable}
	root := a.root()
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	err = a.nameless(ctx, command, a.explain(err))
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		a.say("%s", interruption(command))
		return exitInterrupted
	}
	if err != nil {
		_, _ = fmt.Fprint(std.Err, describe(err))
	}
	if err != nil && command.CommandPath() == "muster exec" { // the others are the command's own
		return exitExecFailed
	}
	return exitCode(err)
}

// interruption is said when a command was told to end before it was done.
func interruption(c *cobra.Command) string {
	if slices.Contains([]string{"muster server", "muster agent", "muster dev"}, c.CommandPath()) {
		return "interrupted before it was at work"
	}
	return "interrupted; what the server was asked for goes on"
}

const rootLong = `muster is the registry of a small cloud: it knows which machines exist and which
instances run on them, launches new ones as systemd-nspawn containers, deploys services
into them, and tells everyone who watches when something changes.

Every setting is a flag and a variable; a flag counts more.`

// root returns the command that all others hang on.
func (a *app) root() *cobra.Command {
	root := group("muster", "The registry of a small cloud",
		a.devCommand(), a.serverCommand(), a.agentCommand(), a.imageCommand(), a.volumeCommand(), a.simCommand(),
		a.nodeCommand(), a.instanceCommand(), a.serviceCommand(), a.clusterCommand(), a.brakeCommand(), a.watchCommand(),
		a.logsCommand("INSTANCE|SERVICE"), a.execCommand(), a.whyCommand(),
		a.registrationCommand(), a.renderCommand(),
		a.keyCommand(), a.tokenCommand(), a.caCommand(), a.auditCommand(), a.whoamiCommand(), a.playgroundCommand(),
		a.loginCommand(), a.logoutCommand(), a.contextCommand(),
		a.doctorCommand(), a.completionCommand(), a.manCommand(), a.versionCommand(), exitCodesTopic(), a.shimCommand(),
	)
	root.Long = rootLong
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = readBuildInfo().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.Flags().Bool("version", false, "print the version")
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		a.noteGiven(c)
		return readEnvironment(c.Flags(), a.std.LookupEnv)
	}
	root.SetIn(a.std.In)
	root.SetOut(a.std.Out)
	root.SetErr(a.std.Err)
	settings(root.PersistentFlags(), func(f *pflag.FlagSet) {
		f.StringVar(&a.server, "server", client.DefaultURL, "`URL` of the muster server")
		f.StringVar(&a.context, "context", "", "`NAME` of the server, as muster context list has it; the current one when left out")
		f.StringVar(&a.keyFile, "key-file", "", "`FILE` with the access key; MUSTER_KEY can have the key itself")
		f.StringVar(&a.caFile, "ca", "", "`FILE` of the certificates that the server is verified by; those of this machine when left out")
		f.VarP(&a.format, "output", "o", "how results are printed: table, json or yaml")
		f.DurationVar(&a.timeout, "timeout", 30*time.Second, "how long one call may take, its retries included")
		f.BoolVar(&a.noColor, "no-color", false, "never use colour; NO_COLOR does the same")
	})
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(a.printUsage)
	a.complete(root)
	suggest(root)
	return root
}

func flagError(c *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return badValue("--"+invalid.GetFlag().Name, invalid.GetFlag(), invalid.GetValue(), err)
	}
	return usageError("%s; see %s --help", err.Error(), c.CommandPath())
}

// group returns a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			hint := "see " + c.CommandPath() + " --help"
			if similar := suggestions(c, args[0]); len(similar) > 0 {
				hint = "did you mean " + listed(similar, "or") + "?"
			}
			return usageError("%s has no command %s; %s", c.CommandPath(), quote(args[0]), hint)
		},
	}
	c.AddCommand(commands...)
	return c
}

// exactly takes so many arguments, called what.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError("%s takes %s, not %s; see %s --help", c.CommandPath(), what, counted(len(args), "word"), c.CommandPath())
		}
		return nil
	}
}

// atLeast is exactly with no upper bound.
func atLeast(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < n {
			return exactly(n, what)(c, args)
		}
		return nil
	}
}

// connect returns a client of the server that the settings name. Each of its calls ends within --timeout.
func (a *app) connect() (*client.Client, error) {
	if a.timeout <= 0 {
		return nil, usageError("--timeout %s is no time to wait; give one such as 30s", a.timeout)
	}
	t, err := a.aim()
	if err != nil {
		return nil, err
	}
	a.warnOfPlainText(t)
	return client.New(t.options(a.timeout))
}
