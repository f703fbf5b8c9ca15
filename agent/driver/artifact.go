package driver

import (
	"context"
	"os"

	"github.com/muster-cloud/muster"
)

// Artifacts is the optional ability to put what a service is made of into a
// machine.
type Artifacts interface {
	// Install unpacks an artifact below ArtifactsDir of a machine that runs, in place of what was there under its name,
	// and returns the path. What it makes belongs to root, and others can read and execute it. A failure leaves what was there.
	// INVALID: the artifact cannot be unpacked, with the reason; LIMIT, which is ENOSPC too: its disk is full; ErrNotFound, CONFLICT: as
	// in StartProcess.
	Install(ctx context.Context, a Artifact) (Installed, error)
	// Uninstall deletes what Install has put below ArtifactsDir under a name. What is not there is no error. ErrNotFound,
	// CONFLICT: as in StartProcess.
	Uninstall(ctx context.Context, machine, name string) error
}

// ArtifactsDir is where artifacts are in a machine: ArtifactsDir/NAME.
const ArtifactsDir = "/opt/muster"

// Artifact is a tar file, plain or compressed by gzip or zstd, or one
// executable.
type Artifact struct {
	Machine  string   // that gets it
	Name     string   // below ArtifactsDir, as muster.CheckName takes it; such as svc-1
	File     *os.File // with the content from its present offset on
	FileName string   // how one executable is called; default "app"
	Unpacked int64    // bytes that it may have unpacked; default 4 GiB
	Entries  int      // files, directories and links that it may have; default 100,000
}

// Validate refuses what no driver could install, with an INVALID error that
// names the field.
func (a *Artifact) Validate() error {
	if a.File == nil {
		return muster.InvalidField("file", "there is none")
	}
	return muster.CheckName("name", a.Name)
}

// Installed is an artifact in a machine.
type Installed struct {
	Dir        string // absolute
	Executable string // absolute: the artifact, if that was one; empty: it was a tree
	Unpacked   int64  // bytes
	Entries    int
}
