package nspawn_test

import (
	"testing"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
	"github.com/muster-cloud/muster/agent/nspawn"
)

func TestDriver_Conforms(t *testing.T) {
	drivertest.Run(t, func(t *testing.T) drivertest.Harness {
		h := newHost(t)
		return drivertest.Harness{
			Open:      func(*testing.T) driver.Driver { return h.open() },
			Spec:      h.complete,
			Prefix:    h.prefix,
			Commands:  drivertest.ShellCommands(),
			Console:   h.console,
			HostPath:  h.shared(),
			Forbidden: h.state,
			Leftovers: h.leftovers,
		}
	})
}

// What a Driver can do beside.
var _ interface {
	driver.Processes
	driver.ProcessLogs
	driver.Exec
	driver.Artifacts
	driver.Dialer
} = (*nspawn.Driver)(nil)
