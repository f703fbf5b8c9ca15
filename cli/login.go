package cli

import (
	"bufio"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

const loginLong = `Keep a server and an access key for it, so that later commands use both. The key is
asked for without being shown, or read from standard input, and tried before it is
kept, in ~/.config/muster/config.yaml, which its owner alone can read.

A server with a certificate of its own cluster is not known to this machine: give its
certificates with --ca, or with --ca-pin what muster ca show says on the server. On a
terminal you are asked to compare that.`

const loginExamples = `  muster login https://ops.example:9000
  muster login https://10.0.0.1:9000 --name prod --ca ca.crt <key`

// loginFlags are what `login` can be told. The certificates are --ca, as elsewhere.
type loginFlags struct{ name, pin string }

func (a *app) loginCommand() *cobra.Command {
	var flags loginFlags
	c := &cobra.Command{
		Use: "login URL", Short: "Keep a server and an access key for it", Long: loginLong, Example: loginExamples, Args: exactly(1, "the URL of a server"),
		RunE: func(c *cobra.Command, args []string) error { return a.login(c.Context(), args[0], flags) },
	}
	c.Flags().StringVar(&flags.name, "name", "", "`NAME` of the context; the server's host when left out")
	c.Flags().StringVar(&flags.pin, "ca-pin", "", "the `PIN` of the cluster's certificate authority, as muster ca show says on the server")
	return c
}

func (a *app) login(ctx context.Context, address string, flags loginFlags) error {
	at, err := origin(address)
	if err != nil {
		return err
	}
	s, err := a.load()
	if err != nil {
		return err
	}
	c := savedContext{Name: flags.name, Server: at}
	if c.Name, err = s.nameFor(at, flags.name); err != nil {
		return err
	}
	if c.CA, err = a.meet(ctx, at, flags.pin); err != nil {
		return err
	}
	if c.Key, err = a.askForKey(ctx, at); err != nil {
		return err
	}
	key, err := a.try(ctx, c)
	if err != nil {
		return err
	}
	s.put(c)
	s.Current = c.Name
	if err := a.save(s); err != nil {
		return err
	}
	return a.write(shownContext(&c, s.Current), func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "logged in to %s as %s (%s, %s); the context is %s\n", c.Server, oneLine(key.Name), key.ID, key.Role, c.Name)
	})
}

// nameFor is what to call a context of a server: as was said, or by its host.
func (s *saved) nameFor(server, wish string) (string, error) {
	if wish != "" {
		return wish, muster.CheckName("--name", wish)
	}
	for _, c := range s.Contexts {
		if c.Server == server {
			return c.Name, nil
		}
	}
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	name := strings.Trim(strings.ReplaceAll(u.Hostname(), ":", "-"), "-")
	if s.find(name) != nil {
		name += "-" + u.Port()
	}
	if muster.CheckName("name", name) != nil || s.find(name) != nil {
		return "", usageError("the context has no name: give it one with --name")
	}
	return name, nil
}

// askForKey reads a key: on a terminal without showing it, else from standard input.
func (a *app) askForKey(ctx context.Context, server string) (string, error) {
	var text string
	var err error
	if file, ok := a.std.In.(*os.File); ok && isTerminal(file) {
		text, err = readHidden(ctx, file, a.std.Err, "Access key for "+server+": ")
	} else {
		text, err = firstWord(a.std.In)
	}
	if err != nil {
		return "", err
	}
	if strings.TrimSpace(text) == "" {
		return "", usageError("there was no access key on standard input; type it when asked, or write muster login URL <FILE")
	}
	key, err := auth.ParseKey(text)
	if err != nil {
		return "", err
	}
	return key.Text(), nil
}

// firstWord reads a line of at most so much.
func firstWord(in io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(in, 4096)).ReadString('\n')
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's own contract
		return "", fmt.Errorf("read the access key: %w", err)
	}
	return line, nil
}

// try asks the server whose key it is.
func (a *app) try(ctx context.Context, c savedContext) (*client.AccessKey, error) {
	t := &target{url: c.Server, key: c.Key, from: "this login"}
	a.aimed = t
	if c.CA != "" {
		roots, err := auth.DecodeBundle([]byte(c.CA))
		if err != nil {
			return nil, usageError("the certificates to verify the server by cannot be read: %w", err)
		}
		t.roots = roots
	}
	a.warnOfPlainText(t)
	api, err := client.New(t.options(a.timeout))
	if err != nil {
		return nil, err
	}
	key, err := api.Whoami(ctx)
	if err == nil && key == nil {
		err = muster.Errorf(muster.Conflict, "%s asks nobody for a key, so there is nothing to log in to; use it with --server", c.Server)
	}
	return key, err
}

// meet returns what a server is to be verified by from now on, as PEM; empty: this
// machine's authorities vouch for it, or it has no TLS. Nothing is presented to it.
func (a *app) meet(ctx context.Context, server, pin string) (string, error) {
	switch {
	case a.caFile != "" && pin != "":
		return "", usageError("--ca and --ca-pin say the same in two ways; leave one of them out")
	case a.caFile != "":
		text, err := os.ReadFile(a.caFile)
		if err != nil {
			return "", usageError("--ca cannot be read: %w", err)
		}
		return string(text), nil
	case !strings.HasPrefix(server, "https://"):
		if pin != "" {
			return "", usageError("--ca-pin is for a server with TLS, and %s has none; write https://", server)
		}
		return "", nil
	}
	chain, known, err := a.greet(ctx, server)
	if err != nil || known && pin == "" {
		return "", err
	}
	wanted, err := a.pinOf(ctx, server, chain, pin)
	if err != nil {
		return "", err
	}
	return pinned(chain, wanted)
}

// pinOf is the pin that an authority of the chain has to have: the given one, or the
// one that a person at a terminal says yes to.
func (a *app) pinOf(ctx context.Context, server string, chain []*x509.Certificate, given string) (auth.Pin, error) {
	if given != "" {
		pin, err := auth.ParsePin(given)
		if err != nil {
			return auth.Pin{}, usageError("--ca-pin: %w; copy it from the server", err)
		}
		return pin, nil
	}
	root := issuer(chain)
	if root == nil {
		return auth.Pin{}, muster.Errorf(muster.Unauthenticated, "nobody whom this machine trusts vouches for %s; give the certificates of its authority with --ca", server)
	}
	pin := auth.PinOf(root)
	file, ok := a.std.In.(*os.File)
	if !ok || !isTerminal(file) {
		return auth.Pin{}, muster.Errorf(muster.Unauthenticated,
			"this machine does not know the certificate authority of %s; give its certificates with --ca, or with --ca-pin what muster ca show says on the server", server)
	}
	_, _ = fmt.Fprintf(a.std.Err, "This machine meets %s for the first time. The pin of its certificate authority is\n\n    %s\n\nCompare it with what `muster ca show` says on the server.\n", server, pin)
	answer, err := readLine(ctx, file, a.std.Err, "Is it the same? [y/N] ")
	if err != nil {
		return auth.Pin{}, err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return auth.Pin{}, muster.Errorf(muster.Unauthenticated, "the server is not trusted, and nothing was sent to it")
	}
	return pin, nil
}
