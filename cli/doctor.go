package cli

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/cli/doctor"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

const doctorLong = `Examine this machine: can an agent work here, and instances run? One line says what
each check has found, and where it is not OK, what to do. With FAIL an agent cannot
work; WARN is worth a look. Give it the settings that the agent will have; of a machine
that has joined it knows the server and the name.

It changes nothing, and needs no root, but without it not everything is checked.
The exit code is 8 when a check is FAIL, else 0.

With --verify-feed the server compares what this cluster should have in the discovery feed
with what is there, message by message; the exit code is 8 when something differs. With
--repair it is put right. That needs the role ADMIN.`

// doctorFlags are those settings of an agent that a machine is examined for, and
// the server's instance network, which only the server knows.
type doctorFlags struct {
	agentFlags
	network netip.Prefix
}

func (a *app) doctorCommand() *cobra.Command {
	d, feed := doctorFlags{network: server.Defaults().InstanceNetwork}, feedCheck{}
	c := &cobra.Command{
		Use: "doctor", Short: "Examine this machine: can an agent work here?", Long: doctorLong, Args: exactly(0, "no arguments"),
		Example: "  sudo muster doctor\n  sudo muster doctor --server http://10.0.0.1:9000 --listen 10.0.0.2:8080\n  muster doctor --verify-feed --repair",
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case feed.verify:
				return a.verifyFeed(c.Context(), feed.repair)
			case feed.repair:
				return usageError("--repair is of the discovery feed; give --verify-feed too")
			}
			return a.doctor(c, d)
		},
	}
	feed.declare(c.Flags())
	settings(c.Flags(), func(f *pflag.FlagSet) {
		f.StringVar(&d.id, "id", "", "`NAME` of this node; when left out the one that it joined by, else the hostname")
		f.StringVar(&d.listen, "listen", agent.DefaultListen, "`ADDRESS` that the agent will listen on")
		f.StringVar(&d.stateDir, "state-dir", defaultStateDir, "`DIRECTORY` of instances and images")
		launcherFlags(f, &d.agentFlags)
		f.Var(&prefixValue{&d.network}, "instance-network", "`NETWORK` of the instances, as the server has it")
	})
	return c
}

func (a *app) doctor(command *cobra.Command, d doctorFlags) (err error) {
	ctx := command.Context()
	if d.stateDir, err = filepath.Abs(d.stateDir); err != nil {
		return usageError("--state-dir cannot be found: %w", err)
	}
	c, err := a.doctorClient(command, &d)
	if err != nil {
		return err
	}
	if d.id == "" {
		if d.id, err = os.Hostname(); err != nil {
			return fmt.Errorf("read the hostname: %w; give the node's name with --id", err)
		}
	}
	facts, err := doctor.Gather(ctx, doctor.Options{
		Machines: nspawn.Options{StateDir: d.stateDir, CgroupPrefix: d.cgroupPrefix, Launcher: nspawn.Launcher(d.launcher), ResolvConf: d.resolvConf},
		AtWork:   agent.AtWork(d.stateDir), Listen: d.listen, Node: d.id, Network: d.network, Client: c,
	})
	if err != nil {
		return err
	}
	findings := doctor.Examine(facts, version)
	if err := a.write(findings, func(w io.Writer) { a.printFindings(w, findings) }); err != nil {
		return err
	}
	if doctor.Failed(findings) {
		return exitStatus(exitDegraded)
	}
	return nil
}

// doctorClient returns a client of the server that an agent here talks to, and completes
// the flags from what this machine got when it joined; nil: nobody said which server.
func (a *app) doctorClient(command *cobra.Command, d *doctorFlags) (*client.Client, error) {
	server, _ := a.std.LookupEnv(variableOf("server"))
	named := a.serverGiven || server != ""
	if joined, err := agent.OpenCredentials(d.stateDir); err == nil { // else it has not joined, or this is not root
		d.credentials, d.id = joined, cmp.Or(d.id, string(joined.NodeID()))
		if !command.Flags().Changed("listen") {
			d.listen = d.own(command.Context(), joined.Server())
		}
		if !named {
			return d.clientOf(joined.Server())
		}
	}
	t, err := a.aim()
	if err != nil || !t.named && t.here == nil {
		return nil, err
	}
	return a.connect()
}

func (a *app) printFindings(w io.Writer, findings []doctor.Finding) {
	color := a.painter()
	for _, f := range findings {
		// Never shortened: what to do stands at the end.
		_, _ = fmt.Fprintf(w, "%s%*s  %-15s  %s\n", color(string(f.Level)), 4-len(f.Level), "", f.Check, oneLine(f.Text))
	}
}
