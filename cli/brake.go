package cli

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster/client"
)

const brakeReleaseLong = `Release the brake: nodes that are silent are pruned again, once each of them has
been silent for the whole span from now on. Do it when they are really gone; when
they can only not be reached, wait, or mend that.`

func (a *app) brakeCommand() *cobra.Command {
	return group("brake", "What keeps nodes from being pruned when many fall silent together", a.brakeReleaseCommand())
}

func (a *app) brakeReleaseCommand() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "release", Short: "Let silent nodes be pruned again", Long: brakeReleaseLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error { return a.releaseBrake(c.Context(), reason) },
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for those who look later")
	return c
}

func (a *app) releaseBrake(ctx context.Context, reason string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	b, err := c.ReleaseBrake(ctx, reason)
	if err != nil {
		return err
	}
	return a.write(b, func(w io.Writer) { a.printBrake(w, b) })
}

func (a *app) printBrake(w io.Writer, b *client.Brake) {
	fields(w, a.painter(), "brake", string(b.State), "reason", b.Reason, "since", moment(b.Since), "releases itself", moment(b.ReleasesAt))
}
