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
// or joins now, else with what every command has.
func (a *app) agentClient(c *cobra.Command, flags *agentFlags, log *slog.Logger) (*client.Client, error) {
	if err := flags.enrol(c.Context(), log); err != nil {
		return nil, err
	}
	agentName := "muster-agent/" + version
	if flags.credentials == nil {
		t, err := a.aim()
		if err != nil {
			return nil, err
		}
		o := t.options(0)
		o.UserAgent = agentName
		return client.New(o)
	}
	server := flags.credentials.Server()
	if c.Flags().Changed("server") {
		server = a.server
	}
	if !c.Flags().Changed("listen") {
		flags.listen = flags.own(c.Context(), server)
	}
	o := client.Options{URL: server, Key: flags.credentials.Key(), UserAgent: agentName}
	if flags.credentials.Secure() {
		o.Trust = flags.credentials.Trust
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
	text := strings.Clone(f.join)
	hideArgument(text)
	join, err := auth.ParseJoin(text)
	if err != nil {
		return err
	}
	if err := f.check(ctx); err != nil { // before the token is used up
		return err
	}
	f.credentials, err = agent.Join(ctx, agent.JoinOptions{
		StateDir: f.stateDir, Join: join, ID: muster.NodeID(f.id), UserAgent: "muster-agent/" + version, Logger: log,
	})
	return err
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
