package drivertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// mounted is a volume where a process sees it.
type mounted struct {
	at       string
	disk     *Disk
	readOnly bool
}

// place returns where a path of the machine's is: in a volume, or on its own disk.
func (p *Process) place(path string) (disk *Disk, at string, readOnly bool) {
	disk, at = p.Disk, path
	longest := ""
	for _, v := range p.volumes {
		if muster.Within(path, v.at) && len(v.at) > len(longest) {
			disk, at, readOnly, longest = v.disk, strings.TrimPrefix(path, v.at), v.readOnly, v.at
		}
	}
	return disk, at, readOnly
}

// AllowHostPath lets machines have a directory of the host's.
func (h *Host) AllowHostPath(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.allowed[path] = &Disk{files: map[string]string{}}
}

func (h *Host) allowedLocked(mounts []muster.VolumeMount) error {
	for _, m := range mounts {
		if m.HostPath != "" && h.allowed[m.HostPath] == nil {
			return fmt.Errorf("the host path %s is not allowed", m.HostPath)
		}
	}
	return nil
}

// mountLocked returns what a machine sees; volumes that are not there yet are made.
func (h *Host) mountLocked(mounts []muster.VolumeMount) []mounted {
	var all []mounted
	for _, m := range mounts {
		disk := h.allowed[m.HostPath]
		if m.Name != "" {
			if h.volumes[m.Name] == nil {
				h.volumes[m.Name] = &Disk{files: map[string]string{}}
			}
			disk = h.volumes[m.Name]
		}
		all = append(all, mounted{at: m.Path, disk: disk, readOnly: m.ReadOnly})
	}
	return all
}

// Volumes returns the names of the host's volumes.
func (f *Fake) Volumes(context.Context) ([]string, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	return append([]string{}, slices.Sorted(maps.Keys(f.host.volumes))...), nil
}

// RemoveVolume forgets a volume that no machine sees.
func (f *Fake) RemoveVolume(_ context.Context, name string) error {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	for machine, m := range f.host.machines {
		if m.status.Spec.Uses(name) {
			return fmt.Errorf("%w: %s", driver.ErrInUse, machine)
		}
	}
	delete(f.host.volumes, name)
	return nil
}

// HostPaths returns what AllowHostPath was called with.
func (f *Fake) HostPaths() []string {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	return append([]string{}, slices.Sorted(maps.Keys(f.host.allowed))...)
}
