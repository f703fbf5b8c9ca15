package driver

import "context"

// Disks is the optional ability to say what machines' own disks take, and to limit it.
type Disks interface {
	// DiskUsage returns what a machine's own disk takes of the host, in bytes: what was written to it, not the image below
	// it and not its volumes. It may take minutes for a large one, in which it uses little of the host. ErrNotFound: the
	// machine is not there.
	DiskUsage(ctx context.Context, machine string) (int64, error)
	// DiskLimits says what the host lacks to limit disks, with the remedy; nil: nothing. There, a Launch with a limit
	// is an error, or fails; the limit is never left out.
	DiskLimits(ctx context.Context) error
}
