package cli

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

func (a *app) tokenCommand() *cobra.Command {
	return group("token", "Join tokens: what lets machines join as nodes", a.tokenCreateCommand(), a.tokenListCommand(), a.tokenRevokeCommand())
}

const tokenCreateLong = `Make a join token, and print the line to run on the machine that is to join. The token
is good for one machine and an hour, unless told otherwise. Where the server has TLS, it
pins the server's certificate authority, so that nobody can come between.`

const tokenCreateExamples = `  muster token create
  muster token create --uses 20 --ttl 24h --label zone=a --host ops.example`

// tokenFlags are what a token can be told.
type tokenFlags struct {
	ttl        time.Duration
	uses       int
	role, host string
	labels     map[string]string
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var flags tokenFlags
	c := &cobra.Command{
		Use: "create", Short: "Make a join token, and print how to join", Long: tokenCreateLong, Example: tokenCreateExamples, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.createToken(c.Context(), flags) },
	}
	f := c.Flags()
	f.DurationVar(&flags.ttl, "ttl", muster.DefaultTokenTTL, "how long it is good")
	f.IntVar(&flags.uses, "uses", 1, "how many machines may join by it")
	f.StringVar(&flags.role, "role", "", "what their nodes are for, a `ROLE`; what their agents say when left out")
	f.StringToStringVar(&flags.labels, "label", nil, "labels `KEY=VALUE` that their nodes begin with, separated by commas")
	f.StringVar(&flags.host, "host", "", "`HOST` that they reach the server at, or HOST:PORT; as this command does when left out")
	return c
}

func (a *app) createToken(ctx context.Context, flags tokenFlags) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	host, err := a.joinHost(flags.host)
	if err != nil {
		return err
	}
	made, err := api.CreateJoinToken(ctx, muster.CreateJoinTokenInput{
		TTL: &flags.ttl, Uses: &flags.uses, Role: muster.NodeRole(strings.ToUpper(flags.role)), Labels: flags.labels,
	})
	if err != nil {
		return err
	}
	if a.format == formatTable {
		a.say("%s is good until %s for %s; run this on it, as root:", made.JoinToken.ID, made.JoinToken.ExpiresAt.Format(time.RFC3339), counted(made.JoinToken.Uses, "machine"))
	}
	return a.write(made, func(w io.Writer) { _, _ = fmt.Fprintf(w, "muster agent --join %s@%s\n", made.Text, host) })
}

// joinHost is where machines that join reach the server, as --join has it.
func (a *app) joinHost(wish string) (string, error) {
	if wish != "" {
		// Only the place is looked at: there is no token yet.
		_, err := auth.ParseJoin(auth.JoinToken{ID: "t-0"}.Text() + "@" + wish)
		if err != nil {
			return "", usageError("--host: %w", err)
		}
		return wish, nil
	}
	u, err := url.Parse(a.aimed.url)
	if err != nil {
		return "", err
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		a.say("other machines cannot reach %s: for them, name the server's address with --host", u.Host)
	}
	if u.Port() == "" {
		u.Host += ":" + map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Host, nil
}

func (a *app) tokenListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the join tokens that have not expired", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			tokens, err := api.JoinTokens(c.Context())
			if err != nil {
				return err
			}
			return a.write(tokens, func(w io.Writer) { printTokens(w, tokens...) })
		},
	}
}

func printTokens(w io.Writer, tokens ...client.JoinToken) {
	t := &table{whole: []int{0}}
	t.add("ID", "EXPIRES", "USED", "BY", "ROLE", "LABELS", "CREATED BY")
	for _, k := range tokens {
		role, nodes := "", []string{}
		if k.Role != nil {
			role = string(*k.Role)
		}
		for _, use := range k.Used {
			nodes = append(nodes, string(use.NodeID))
		}
		used := strconv.Itoa(len(k.Used)) + " of " + strconv.Itoa(k.Uses)
		t.add(string(k.ID), k.ExpiresAt.Format(time.RFC3339), used, strings.Join(nodes, " "), role, pairs(k.Labels), k.CreatedBy)
	}
	t.print(w)
}

func (a *app) tokenRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke TOKEN", Short: "End a join token; nodes that joined by it stay", Args: exactly(1, "a token's id, such as t-1"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			revoked, err := api.RevokeJoinToken(c.Context(), muster.TokenID(args[0]))
			if err != nil {
				return err
			}
			return a.write(revoked, func(w io.Writer) { printTokens(w, *revoked) })
		},
	}
}
