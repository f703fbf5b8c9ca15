package server

import (
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"
)

// healthz says that the process lives; nothing else is asked.
func healthz() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeProbe(w, http.StatusOK, "ok")
	})
}

// readyz says whether mutations would be taken, and if not, why. ready returns
// nil when they would.
func readyz(ready func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := ready(); err != nil {
			writeProbe(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		writeProbe(w, http.StatusOK, "ready")
	})
}

func writeProbe(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text)
}

// leastFree is the room on the data directory's disk below which commits are
// about to fail, in bytes.
const leastFree = 16 << 20

// writable returns why the database could not be written, or nil.
func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return fmt.Errorf("the data directory %s cannot be written: %w", dir, err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("the disk of %s cannot be looked at: %w", dir, err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < leastFree {
		return fmt.Errorf("the disk of %s has %d KiB left; free some space there", dir, free>>10)
	}
	return nil
}
