package drivertest

import (
	"context"

	"github.com/muster-cloud/muster/agent/driver"
)

// SetUsage sets what a machine uses from now on while it runs; without it that is no
// CPU and one MiB.
func (h *Host) SetUsage(name string, u driver.Usage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.usage[name] = u
}

// Stats returns what was set for the machines that run.
func (f *Fake) Stats(context.Context) (map[string]driver.Usage, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	used := map[string]driver.Usage{}
	for name, m := range f.host.machines {
		if m.status.State != driver.Running {
			continue
		}
		used[name] = driver.Usage{Memory: 1 << 20}
		if set, ok := f.host.usage[name]; ok {
			used[name] = set
		}
	}
	return used, nil
}
