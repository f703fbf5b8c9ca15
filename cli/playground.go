package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster/client"
)

const playgroundLong = `Print a link that signs a browser in to the playground, once, with the rights of the key
that this command uses, for 12 hours.`

func (a *app) playgroundCommand() *cobra.Command {
	var ttl time.Duration
	c := &cobra.Command{
		Use: "playground", Short: "Print a link that signs a browser in", Long: playgroundLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			link, err := api.CreateSignIn(c.Context(), ttl)
			if err != nil {
				return err
			}
			url, err := linkOf(a.aimed.url, link)
			if err != nil {
				return err
			}
			shown := struct {
				URL       string    `json:"url"`
				ExpiresAt time.Time `json:"expiresAt"`
			}{url, link.ExpiresAt}
			return a.write(shown, func(w io.Writer) { _, _ = fmt.Fprintln(w, url) })
		},
	}
	c.Flags().DurationVar(&ttl, "ttl", 10*time.Minute, "how long the link is good")
	return c
}

// linkOf is the whole address of a one-time link.
func linkOf(server string, link *client.SignIn) (string, error) {
	at, err := origin(server)
	return at + link.Path, err
}
