package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// exitStatus ends the process with a status and says nothing: whoever ran the
// command has been told already.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// shimCommand is what the agent starts beside each instance; people never do.
func (a *app) shimCommand() *cobra.Command {
	return &cobra.Command{
		Use: "shim", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if status := nspawn.Shim(args, failpoint.FromEnvironment()); status != 0 {
				return exitStatus(status)
			}
			return nil
		},
	}
}
