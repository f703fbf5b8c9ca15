package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
)

func (a *app) keyCommand() *cobra.Command {
	return group("key", "Access keys: what people and programs present", a.keyCreateCommand(), a.keyListCommand(), a.keyRevokeCommand(), a.keyRotateCommand())
}

const keyCreateLong = `Make an access key. What it opens follows from its role:

    VIEWER      reads everything but keys and the audit
    OPERATOR    launches, stops, cordons as well
    ADMIN       everything
    NODE        is an agent, for the nodes of --node; machines that join get their own
    REGISTRAR   registers in the discovery feed, for --cluster and --service

--node, --cluster and --service limit it to a part; in a pattern, * stands for any
characters. The key goes to standard output, this once: nobody can read it again.`

const keyCreateExamples = `  (umask 077; muster key create ci --role OPERATOR --expires 2160h >ci.key)
  muster key create lab --role OPERATOR --node 'lab-*'`

func (a *app) keyCreateCommand() *cobra.Command {
	var role string
	var scope muster.KeyScope
	var expires time.Duration
	c := &cobra.Command{
		Use: "create NAME", Short: "Make an access key", Long: keyCreateLong, Example: keyCreateExamples, Args: exactly(1, "a name for the key"),
		RunE: func(c *cobra.Command, args []string) error {
			in := muster.CreateAccessKeyInput{Name: args[0], Role: muster.Role(strings.ToUpper(role))}
			if !scope.Unlimited() {
				in.Scope = &scope
			}
			if c.Flags().Changed("expires") {
				at := time.Now().Add(expires)
				in.ExpiresAt = &at
			}
			if err := in.Validate(time.Now()); err != nil {
				return err
			}
			return a.createKey(c.Context(), in)
		},
	}
	f := c.Flags()
	f.StringVar(&role, "role", string(muster.Viewer), "the `ROLE` of its holder")
	f.StringSliceVar(&scope.Nodes, "node", nil, "only nodes like `PATTERN`, and their instances; may be repeated")
	f.StringSliceVar(&scope.Clusters, "cluster", nil, "REGISTRAR: only clusters like `PATTERN`; may be repeated")
	f.StringSliceVar(&scope.Services, "service", nil, "REGISTRAR: only services like `PATTERN`; may be repeated")
	f.DurationVar(&expires, "expires", 0, "how long it is good; for ever when left out")
	return c
}

func (a *app) createKey(ctx context.Context, in muster.CreateAccessKeyInput) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	made, err := api.CreateAccessKey(ctx, in)
	if err != nil {
		return err
	}
	if made.Text == nil {
		return muster.Errorf(muster.Internal, "the server made %s and did not show it: rotate it, or revoke it", made.AccessKey.ID)
	}
	return a.writeSecret(made, made.AccessKey, *made.Text)
}

// writeSecret prints a key's text alone, so that it can be piped, and tells the rest
// beside it.
func (a *app) writeSecret(value any, k *client.AccessKey, text string) error {
	if a.format == formatTable {
		a.say("%s (%s, %s); this is its only copy:", k.ID, oneLine(k.Name), k.Role)
	}
	return a.write(value, func(w io.Writer) { _, _ = fmt.Fprintln(w, text) })
}

func (a *app) keyListCommand() *cobra.Command {
	var every bool
	c := &cobra.Command{
		Use: "list", Short: "List the access keys", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			keys, err := collect(api.AllAccessKeys(c.Context()))
			if err != nil {
				return err
			}
			if !every {
				keys = slices.DeleteFunc(keys, func(k *client.AccessKey) bool { return k.Status != muster.KeyActive })
			}
			return a.write(keys, func(w io.Writer) { a.printKeys(w, keys...) })
		},
	}
	c.Flags().BoolVar(&every, "all", false, "those too that were revoked or have expired")
	return c
}

func (a *app) printKeys(w io.Writer, keys ...*client.AccessKey) {
	t := &table{paint: a.painter(), whole: []int{0, 1}}
	t.add("ID", "NAME", "ROLE", "STATUS", "FOR", "EXPIRES", "LAST USED", "CREATED BY")
	for _, k := range keys {
		t.add(string(k.ID), k.Name, string(k.Role), string(k.Status), scopeText(k.Scope), moment(k.ExpiresAt), since(time.Now(), k.LastUsedAt), k.CreatedBy)
	}
	t.print(w)
}

// scopeText is what a key is limited to.
func scopeText(s muster.KeyScope) string {
	var parts []string
	for _, limit := range []struct {
		what     string
		patterns []string
	}{{"nodes", s.Nodes}, {"clusters", s.Clusters}, {"services", s.Services}} {
		if len(limit.patterns) > 0 {
			parts = append(parts, limit.what+" "+strings.Join(limit.patterns, ","))
		}
	}
	return strings.Join(parts, "; ")
}

func (a *app) keyRevokeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "revoke KEY", Short: "End an access key at once and for good", Args: exactly(1, "a key's id, such as k-1"),
		Long: "End an access key at once and for good, with every stream that it opened.",
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			k, err := api.RevokeAccessKey(c.Context(), muster.KeyID(args[0]))
			if err != nil {
				return err
			}
			return a.write(k, func(w io.Writer) { a.printKeys(w, k) })
		},
	}
}

const keyRotateLong = `Give an access key a new secret. The one that it has stays good for --overlap, so that
its holders can change over; without it it ends at once, with the streams that it opened.

The new key goes to standard output, this once. Where this command found the old one in
a context, or beside the server of this machine, it is replaced there as well.`

func (a *app) keyRotateCommand() *cobra.Command {
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate KEY", Short: "Give an access key a new secret", Long: keyRotateLong, Args: exactly(1, "a key's id, such as k-1"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.rotateKey(c.Context(), muster.KeyID(args[0]), overlap)
		},
	}
	c.Flags().DurationVar(&overlap, "overlap", 0, "how long the present secret stays good")
	return c
}

func (a *app) rotateKey(ctx context.Context, id muster.KeyID, overlap time.Duration) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	rotated, err := api.RotateAccessKey(ctx, id, overlap)
	if err != nil {
		return err
	}
	// First the only copy: keeping it may fail.
	if err := a.writeSecret(rotated, rotated.AccessKey, rotated.Text); err != nil {
		return err
	}
	return a.replaceOwn(id, rotated.Text)
}

// replaceOwn puts a key's new text where this command found the old one.
func (a *app) replaceOwn(id muster.KeyID, text string) error {
	own, err := auth.ParseKey(a.aimed.key)
	if err != nil || own.ID != string(id) {
		return nil
	}
	if a.aimed.keep == nil {
		a.say("this command used it too: replace it in %s", a.aimed.from)
		return nil
	}
	if err := a.aimed.keep(text); err != nil {
		return fmt.Errorf("the new key could not be kept in %s, which has the old one: %w", a.aimed.from, err)
	}
	a.say("it was replaced in %s", a.aimed.from)
	return nil
}

func (a *app) whoamiCommand() *cobra.Command {
	return &cobra.Command{
		Use: "whoami", Short: "Show which access key is used, and where it is from", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			k, err := api.Whoami(c.Context())
			if err != nil {
				return err
			}
			return a.write(k, func(w io.Writer) { a.printWhoami(w, k) })
		},
	}
}

func (a *app) printWhoami(w io.Writer, k *client.AccessKey) {
	if k == nil {
		_, _ = fmt.Fprintf(w, "%s asks nobody for a key\n", a.aimed.url)
		return
	}
	fields(
		w, a.painter(), "server", a.aimed.url, "key", string(k.ID), "name", k.Name, "role", string(k.Role), "for", scopeText(k.Scope),
		"expires", moment(k.ExpiresAt), "from", a.aimed.from,
	)
}
