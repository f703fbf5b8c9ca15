package cli

import (
	"context"
	"log/slog"

	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/network"
	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/client"
)

// machines returns the driver of an agent's instances.
func (f *agentFlags) machines(log *slog.Logger) *nspawn.Driver {
	return nspawn.New(nspawn.Options{
		StateDir: f.stateDir, CgroupPrefix: f.cgroupPrefix, Launcher: nspawn.Launcher(f.launcher), ResolvConf: f.resolvConf, Logger: log,
		HostPaths: f.hostPaths, Reached: failpoint.FromEnvironment(), Environ: failpoint.Environ(),
	})
}

// router connects the instances of the driver with those of other nodes.
func (f *agentFlags) router(machines *nspawn.Driver, log *slog.Logger) *network.Router {
	return network.NewRouter(machines.Network(), network.RouterOptions{NoRoutes: !f.nodeRoutes, NoMasquerade: !f.masquerade, Logger: log})
}

// puller gets images from the server into where the driver looks for them.
func (f *agentFlags) puller(api *client.Client, log *slog.Logger) *image.Puller {
	return image.NewPuller(image.PullerOptions{Store: imagesIn(f.stateDir), From: api, Limits: f.images, Keep: f.imageKeep, Logger: log})
}

// check says what this machine lacks to run instances, with the remedy; nil: nothing.
func (f *agentFlags) check(ctx context.Context) error {
	return f.machines(slog.New(slog.DiscardHandler)).Check(ctx)
}
