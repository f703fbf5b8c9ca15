package hollow

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Volumes returns the names of the volumes that machines were launched with.
func (d *Driver) Volumes(context.Context) ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.AppendSeq([]string{}, slices.Values(slices.Sorted(maps.Keys(d.volumes)))), nil
}

// RemoveVolume forgets a volume that no machine was launched with.
func (d *Driver) RemoveVolume(_ context.Context, name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for machine, m := range d.machines {
		if m.status.Spec.Uses(name) {
			return fmt.Errorf("%w: %s", driver.ErrInUse, machine)
		}
	}
	delete(d.volumes, name)
	return nil
}

// HostPaths returns none: there is no host.
func (d *Driver) HostPaths() []string { return nil }

// mountLocked makes the volumes of a machine.
func (d *Driver) mountLocked(mounts []muster.VolumeMount) error {
	for _, m := range mounts {
		if m.HostPath != "" {
			return muster.Errorf(muster.Forbidden, "a hollow node has no host path %s: use a named volume", m.HostPath)
		}
	}
	for _, m := range mounts {
		d.volumes[m.Name] = true
	}
	return nil
}
