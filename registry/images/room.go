package images

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// lookEvery is how many bytes are written between looks at the disk's room.
const lookEvery = 4 << 20

// roomy writes while the disk has room beyond the reserve.
type roomy struct {
	to      *os.File
	reserve int64
	since   int64 // bytes since the last look
	looked  bool
}

func (r *roomy) Write(p []byte) (int, error) {
	if r.since += int64(len(p)); !r.looked || r.since >= lookEvery {
		if err := r.look(); err != nil {
			return 0, err
		}
		r.looked, r.since = true, 0
	}
	return r.to.Write(p)
}

func (r *roomy) look() error {
	var disk unix.Statfs_t
	if err := unix.Fstatfs(int(r.to.Fd()), &disk); err != nil {
		return err
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < r.reserve {
		return muster.Errorf(muster.Unavailable, "the disk of the images has %d MiB left, and an import leaves %d MiB free for the database: free some space, then import again", free>>20, r.reserve>>20)
	}
	return nil
}
