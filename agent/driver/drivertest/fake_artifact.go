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
	m, ok := h.machines[a.Machine]
	if !ok {
		return driver.Installed{}, fmt.Errorf("%w: %s", driver.ErrNotFound, a.Machine)
	}
	if m.status.State != driver.Running {
		return driver.Installed{}, muster.Errorf(muster.Conflict, "the machine %s does not run", a.Machine)
	}
	done := driver.Installed{Dir: path.Join(driver.ArtifactsDir, a.Name), Unpacked: int64(len(content)), Entries: 1}
	if strings.HasPrefix(string(content), "#!") {
		done.Executable = path.Join(done.Dir, a.FileName)
	}
	m.process.Disk.Write(done.Dir, string(content))
	return done, nil
}
