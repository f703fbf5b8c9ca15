package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// inventoryVolumes adds the volumes that are on the node.
func (a *Agent) inventoryVolumes(ctx context.Context, r *muster.ReportInstancesInput) error {
	host, ok := a.o.Driver.(driver.Volumes)
	if !ok {
		return nil
	}
	names, err := host.Volumes(ctx)
	if err != nil {
		return fmt.Errorf("list the volumes: %w", err)
	}
	if len(names) > muster.MaxVolumes { // more, and nothing of the report were taken
		a.o.Logger.Warn("the registry is told of no more volumes than it takes", "node", a.o.ID, "volumes", len(names), "limit", muster.MaxVolumes)
		names = names[:muster.MaxVolumes]
	}
	r.Volumes = names
	return nil
}

// hostPaths are what machines may see of the host's files.
func (a *Agent) hostPaths() []string {
	if host, ok := a.o.Driver.(driver.Volumes); ok {
		return host.HostPaths()
	}
	return nil
}

// diskLimits reports whether disks can be limited.
func (a *Agent) diskLimits(ctx context.Context) bool {
	host, ok := a.o.Driver.(driver.Disks)
	return ok && host.DiskLimits(ctx) == nil
}

// checkAbilities refuses to launch without what is asked for.
func (a *Agent) checkAbilities(w *muster.Assignment) error {
	if _, ok := a.o.Driver.(driver.Volumes); !ok && len(w.Volumes) > 0 {
		return errors.New("this node's agent has no volumes: launch the instance on another node")
	}
	if _, ok := a.o.Driver.(driver.Disks); !ok && w.DiskLimitMB > 0 {
		return errors.New("this node's agent cannot limit disks: launch the instance on another node, or without a limit")
	}
	return nil
}

// removeVolumes returns what deletes the volumes that the registry wants gone; one at
// a time does. A report that lacks them confirms it.
func (a *Agent) removeVolumes(ctx context.Context) (remove func()) {
	host, ok := a.o.Driver.(driver.Volumes)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !ok || a.state.removing || a.state.desired == nil || len(a.state.desired.RemoveVolumes) == 0 {
		return func() {}
	}
	a.state.removing = true
	names := a.state.desired.RemoveVolumes
	return func() {
		for _, name := range names {
			if !a.unwanted(name) { // what was fetched meanwhile may give it to a machine
				continue
			}
			if err := host.RemoveVolume(ctx, name); err != nil && ctx.Err() == nil {
				a.o.Logger.Warn("a volume is not removed yet", "node", a.o.ID, "volume", name, "err", err)
			}
		}
		a.mu.Lock()
		a.state.removing = false
		a.mu.Unlock()
		a.reportDue.raise()
	}
}

// unwanted reports whether the registry still wants a volume gone.
func (a *Agent) unwanted(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.desired != nil && slices.Contains(a.state.desired.RemoveVolumes, name)
}
