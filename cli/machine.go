package cli

import (
	"context"
	"log/slog"

	"github.com/muster-cloud/muster/agent/nspawn"
)

// machines returns the driver of an agent's instances.
func (f *agentFlags) machines(log *slog.Logger) *nspawn.Driver {
	return nspawn.New(nspawn.Options{StateDir: f.stateDir, CgroupPrefix: f.cgroupPrefix, Launcher: nspawn.Launcher(f.launcher), Logger: log})
}

// check says what this machine lacks to run instances, with the remedy; nil: nothing.
func (f *agentFlags) check(ctx context.Context) error {
	return f.machines(slog.New(slog.DiscardHandler)).Check(ctx)
}
