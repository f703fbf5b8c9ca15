package nspawn

import (
	"context"

	"github.com/muster-cloud/muster/agent/driver"
)

// Stats implements driver.Stats: it reads the cgroups of the machines that run.
func (d *Driver) Stats(ctx context.Context) (map[string]driver.Usage, error) {
	names, err := d.names()
	if err != nil {
		return nil, err
	}
	used := map[string]driver.Usage{}
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		m := d.machine(name)
		p, err := m.progress()
		if err != nil || !p.Running || exists(m.path("exit.json")) {
			continue // it does not run yet, or no longer
		}
		r, err := m.record()
		if err != nil {
			continue // List says so
		}
		u, err := r.Group.Usage()
		if err != nil {
			continue // it has just ended
		}
		used[name] = driver.Usage{CPU: u.CPU, Memory: u.Memory, MemoryPeak: u.MemoryPeak}
	}
	return used, nil
}
