package driver

import "context"

// Volumes is the optional ability to keep named directories that outlive machines, and
// to let machines see some of the host's own. Launch makes a volume that is not
// there yet. A host path that is not allowed, or is not there, is an error of
// Launch: such a machine is not made.
type Volumes interface {
	// Volumes returns the names of the volumes, sorted.
	Volumes(ctx context.Context) ([]string, error)
	// RemoveVolume deletes a volume with all that is in it; it is listed until all of that is gone. ErrInUse: a machine sees it, which may have Exited. One
	// that is not there is no error.
	RemoveVolume(ctx context.Context, name string) error
	// HostPaths returns the host's directories and files that machines are allowed, with what is below them, sorted.
	HostPaths() []string
}
