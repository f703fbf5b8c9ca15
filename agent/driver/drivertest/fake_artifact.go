package drivertest

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Install writes the artifact, as one file, to its place on the machine's disk.
func (f *Fake) Install(_ context.Context, a driver.Artifact) (driver.Installed, error) {
	if err := a.Validate(); err != nil {
		return driver.Installed{}, err
	}
	content, err := io.ReadAll(a.File)
	if err != nil {
		return driver.Installed{}, err
	}
	h := f.host
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.runningLocked(a.Machine)
	if err != nil {
		return driver.Installed{}, err
	}
	done := driver.Installed{Dir: path.Join(driver.ArtifactsDir, a.Name), Unpacked: int64(len(content)), Entries: 1}
	if strings.HasPrefix(string(content), "#!") {
		done.Executable = path.Join(done.Dir, a.FileName)
	}
	m.process.Disk.Write(done.Dir, string(content))
	return done, nil
}

// Uninstall empties the place on the machine's disk.
func (f *Fake) Uninstall(_ context.Context, machine, name string) error {
	h := f.host
	h.mu.Lock()
	defer h.mu.Unlock()
	m, err := h.runningLocked(machine)
	if err == nil {
		m.process.Disk.Write(path.Join(driver.ArtifactsDir, name), "")
	}
	return err
}

func (h *Host) runningLocked(name string) (*machine, error) {
	m, ok := h.machines[name]
	if !ok {
		return nil, fmt.Errorf("%w: %s", driver.ErrNotFound, name)
	}
	if m.status.State != driver.Running {
		return nil, muster.Errorf(muster.Conflict, "the machine %s does not run", name)
	}
	return m, nil
}
