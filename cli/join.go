package cli

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"unsafe"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

// agentClient returns the client of an agent: with the credentials of a node that joined,
// or joins now, else with a key that was given.
func (a *app) agentClient(c *cobra.Command, flags *agentFlags, log *slog.Logger) (*client.Client, error) {
	if err := flags.enrol(c.Context(), log); err != nil {
		return nil, err
	}
	if flags.credentials == nil {
		t, err := a.enrolHere(c.Context(), flags, log)
		if err != nil {
			return nil, err
		}
		if flags.credentials == nil {
			o := t.options(0)
			o.UserAgent = agentName()
			return client.New(o)
		}
	}
	server := flags.credentials.Server()
	if c.Flags().Changed("server") {
		server = a.server
	}
	if !c.Flags().Changed("listen") {
		flags.listen = flags.own(c.Context(), server)
	}
	return flags.clientOf(server)
}

func agentName() string { return "muster-agent/" + version }

// clientOf returns a client of a server that presents the node's own credentials.
func (f *agentFlags) clientOf(server string) (*client.Client, error) {
	o := client.Options{URL: server, Key: f.credentials.Key(), UserAgent: agentName()}
	if f.credentials.Secure() {
		o.Trust = f.credentials.Trust
	}
	return client.New(o)
}

// enrol finds the node's credentials, and joins first if that is asked for.
func (f *agentFlags) enrol(ctx context.Context, log *slog.Logger) (err error) {
	if f.join == "" {
		f.credentials, err = agent.OpenCredentials(f.stateDir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	join, err := auth.ParseJoin(f.join)
	if err != nil {
		return err
	}
	f.credentials, err = agent.Join(ctx, agent.JoinOptions{
		StateDir: f.stateDir, Join: join, ID: muster.NodeID(f.id), UserAgent: agentName(), Logger: log,
	})
	return err
}

// hideToken forgets the token of the command line, and keeps it to itself.
func (f *agentFlags) hideToken() {
	if f.join != "" {
		f.join = strings.Clone(f.join)
		hideArgument(f.join)
	}
}

// hideArgument overwrites a text in the memory that this process's arguments are in:
// everybody on this machine can read them, for as long as it runs.
func hideArgument(text string) {
	for _, argument := range os.Args {
		if at := strings.Index(argument, text); at >= 0 {
			// Go's strings are views of that memory, which is the kernel's and writable.
			clear(unsafe.Slice(unsafe.StringData(argument), len(argument))[at : at+len(text)])
		}
	}
}

// own is where an agent listens: at the address that this machine has on the way to the
// server. Sending nothing, it only asks for the route.
func (f *agentFlags) own(ctx context.Context, server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return f.listen
	}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", u.Host)
	if err != nil {
		return f.listen
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	_, port, portErr := net.SplitHostPort(f.listen)
	if err != nil || portErr != nil {
		return f.listen
	}
	return net.JoinHostPort(host, port)
}
