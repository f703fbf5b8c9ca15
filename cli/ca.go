package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster/client"
)

func (a *app) caCommand() *cobra.Command {
	return group("ca", "The certificate authority, which vouches for the server and for nodes", a.caShowCommand(), a.caRotateCommand())
}

func (a *app) caShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Show the certificate authorities, the newest first; -o json has the certificates", Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			all, err := api.CertificateAuthorities(c.Context())
			if err != nil {
				return err
			}
			return a.write(all, func(w io.Writer) { printAuthorities(w, all) })
		},
	}
}

const caRotateLong = `Replace the certificate authority by one with a new key. Nobody is cut off: the old one
vouches for the new one, nodes learn of it when their certificates are renewed, and join
tokens from before stay good. The newest four are kept; a node that trusts only an older
one has to join anew.

After the old key has leaked this is not enough, for the old one stays trusted: stop the
server, remove the directory ca in its data directory, and let every node join anew.`

func (a *app) caRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Replace the certificate authority", Long: caRotateLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.rotateCA(c.Context()) },
	}
}

func (a *app) rotateCA(ctx context.Context) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	before, err := api.CertificateAuthorities(ctx)
	if err != nil {
		return err
	}
	pin := "" // the server says why there is none
	if len(before) > 0 {
		pin = before[0].Pin
	}
	all, err := api.RotateCertificateAuthority(ctx, pin)
	if err != nil {
		return err
	}
	return a.write(all, func(w io.Writer) { printAuthorities(w, all) })
}

func printAuthorities(w io.Writer, all []client.CertificateAuthority) {
	t := &table{whole: []int{0}}
	t.add("PIN", "ISSUES", "SINCE", "UNTIL")
	for _, ca := range all {
		issues := "no"
		if ca.Issues {
			issues = "yes"
		}
		t.add(ca.Pin, issues, moment(&ca.NotBefore), moment(&ca.NotAfter))
	}
	t.print(w)
}
