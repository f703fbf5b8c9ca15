package cli

import (
	"cmp"
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/client"
)

const execLong = `Run a command in an instance, within its limits and without rights that it does not have,
or beside a service: in its instance, as its user, where it runs, and looked for in its files
first. It ends with the status that the command ends with. 125 says that it was muster that
failed, 126 that the command could not be run, 127 that there is none of that name.

Where standard input and output are a terminal, the command gets one of its own, of the
same size, and every key goes to it, Ctrl-C too. --tty and --tty=false decide otherwise.
Without one, standard input is passed on to its end, output and errors stay apart, and
Ctrl-C kills the command. In a loop that reads lines, --stdin=false leaves them to the loop.

The command is killed when the connection is lost. It is in the audit, with its
arguments and without its environment.`

const execExamples = `  muster exec i-7 -- sh
  muster exec i-7 -u nobody -w /srv -e DB_PASSWORD -- ./migrate
  tar c . | muster exec i-7 -- tar x -C /srv
  muster exec i-7 -it -- top
  muster exec svc-1 -- ./migrate`

// execFlags are what `exec` can be told.
type execFlags struct {
	user, dir  string
	env        environment
	stdin, tty bool
}

func (a *app) execCommand() *cobra.Command {
	var e execFlags
	c := &cobra.Command{
		Use: "exec INSTANCE|SERVICE -- COMMAND...", Short: "Run a command in an instance", Long: execLong, Example: execExamples,
		RunE: func(c *cobra.Command, args []string) error {
			id, command, err := targetAndCommand(c, args)
			if err != nil {
				return err
			}
			env, err := e.env.read(a.std.LookupEnv)
			if err != nil {
				return err
			}
			request := muster.ExecRequest{Command: command, Env: env, User: e.user, Dir: e.dir, Terminal: e.tty}
			if !c.Flags().Changed("tty") {
				request.Terminal = e.stdin && isTerminal(a.std.In) && isTerminal(a.std.Out)
			}
			if err := request.Validate(); err != nil {
				return err
			}
			return a.exec(c.Context(), id, request, e.stdin)
		},
	}
	f := c.Flags()
	f.StringVarP(&e.user, "user", "u", "", "`USER` that it runs as, :GROUP behind it or not; when left out root, or the service's")
	f.StringVarP(&e.dir, "dir", "w", "", "absolute `PATH` in the instance where it runs; when left out /, or the service's")
	f.BoolVarP(&e.stdin, "stdin", "i", true, "pass standard input on")
	f.BoolVarP(&e.tty, "tty", "t", false, "give it a terminal; when left out, where there is one here")
	e.env.declare(f, "e")
	return c
}

func targetAndCommand(c *cobra.Command, args []string) (id string, command []string, err error) {
	at := c.ArgsLenAtDash()
	switch {
	case at > 1 || at < 0 && len(args) > 1:
		return "", nil, usageError("%s is neither a flag nor the instance, which is %s; the command comes after --", quote(args[1]), quote(args[0]))
	case len(args) == 0 || at == 0:
		return "", nil, usageError("the instance is missing; write such as muster exec i-1 -- sh")
	case len(args) == 1:
		return "", nil, usageError("the command is missing; write such as muster exec %s -- sh", oneLine(args[0]))
	}
	return args[0], args[1:], nil
}

// place is the instance that a command is run in: the one named, or that of the service named, whose user, directory and
// PATH it gets where the request has none.
func place(ctx context.Context, api *client.Client, id string, request *muster.ExecRequest) (muster.InstanceID, error) {
	if !isService(id) {
		return muster.InstanceID(id), nil
	}
	s, err := api.Service(ctx, muster.ServiceID(id))
	if err != nil {
		return "", err
	}
	dir, lookup := deploy.Surroundings(s.ID, s.DeployURL, s.Dir)
	request.Dir, request.User = cmp.Or(request.Dir, dir), cmp.Or(request.User, s.User, deploy.Nobody)
	if lookup != "" && request.Env["PATH"] == "" {
		request.Env["PATH"] = lookup
	}
	return s.InstanceID, nil
}

// exec runs a command to its end, and ends as it did.
func (a *app) exec(ctx context.Context, target string, request muster.ExecRequest, stdin bool) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	id, err := place(ctx, api, target, &request)
	if err != nil {
		return err
	}
	streams := client.ExecStreams{Stdout: a.std.Out, Stderr: a.std.Err}
	if stdin {
		streams.Stdin = a.std.In
	}
	if !request.Terminal {
		exited, err := api.Exec(ctx, id, request, streams)
		return a.execEnded(ctx, request.Command[0], exited, err)
	}
	// Signals whose default is to end this process would leave the terminal as the command had it.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	s := openScreen(a.std.In, a.std.Out)
	defer s.close()
	restored := context.AfterFunc(ctx, s.close) // also when the output is held up
	defer restored()
	size := s.size()
	request.Rows, request.Columns, streams.Resize = size.Rows, size.Columns, s.sizes
	if stdin {
		streams.Stdin = s
	}
	exited, err := api.Exec(ctx, id, request, streams)
	s.close() // before anything is said
	return a.execEnded(ctx, request.Command[0], exited, err)
}

// execEnded says what has to be said of a command's end, and returns its status.
func (a *app) execEnded(ctx context.Context, command string, exited muster.ExecExited, err error) error {
	switch {
	case ctx.Err() != nil:
		a.say("interrupted, and the command was killed")
		return exitStatus(exitInterrupted)
	case err != nil:
		return err
	case exited.Failure != "":
		a.say("%s could not be run: %s", oneLine(command), oneLine(exited.Failure))
		if exited.Code == exitOK {
			exited.Code = exitCannotRun
		}
	}
	if exited.Code != exitOK {
		return exitStatus(exited.Code)
	}
	return nil
}
