package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/renameio/v2"

	"github.com/muster-cloud/muster"
)

// identity is what an agent has to remember across its starts.
type identity struct {
	UID         muster.NodeUID `json:"uid"`        // issued by the registry; empty before the first registration
	Birth       string         `json:"birth"`      // a secret of the agent's own: a registry knows it by that before it knows its uid
	ClusterUID  string         `json:"clusterUid"` // of the registry that issued it
	Epoch       string         `json:"epoch"`      // the history that it was last in
	Incarnation int64          `json:"incarnation"`
	BootID      string         `json:"bootId"`
	// Revive are the machines that a restart of the host ended and that have not
	// been started again yet.
	Revive []string `json:"revive,omitempty"`
}

// identityFile keeps an identity on disk; the directory is locked while it is open.
type identityFile struct {
	path string
	lock *os.File

	writing   sync.Mutex // held while the disk is written; readers don't wait for that
	unwritten bool       // guarded by writing

	mu  sync.Mutex
	now identity
}

// lockFile is locked by the agent that is at work with a state directory.
const lockFile = "agent.lock"

// lockWait is how long a lock is waited for: what an agent that was killed had just begun to start has it
// for a moment yet.
const lockWait = 2 * time.Second

// openIdentity locks the state directory, which it makes if need be, and reads
// what is there. CONFLICT: another agent holds it.
func openIdentity(ctx context.Context, dir string) (*identityFile, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, fmt.Errorf("make the agent's state directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the agent's state directory: %w", err)
	}
	if err := waitForLock(ctx, lock); err != nil {
		_ = lock.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the agent's state directory: %w", err)
		}
		return nil, inUse(dir)
	}
	f := &identityFile{path: filepath.Join(dir, "agent.json"), lock: lock}
	text, err := os.ReadFile(f.path)
	if err == nil {
		err = json.Unmarshal(text, &f.now)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = lock.Close()
		return nil, fmt.Errorf("read the agent's identity %s: %w; remove the file to join as a new node", f.path, err)
	}
	return f, nil
}

func inUse(dir string) error {
	return muster.Errorf(muster.Conflict, "another agent uses the state directory %s: stop it, or give this one another with --state-dir", dir)
}

// AtWork tells whether an agent is at work with a state directory, as far as this user may know.
func AtWork(dir string) bool {
	lock, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false
	}
	defer func() { _ = lock.Close() }() // which unlocks it
	return errors.Is(syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

func waitForLock(ctx context.Context, lock *os.File) error {
	for deadline := time.Now().Add(lockWait); ; {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil || !time.Now().Before(deadline) || !sleep(ctx, 20*time.Millisecond, nil) {
			return err
		}
	}
}

// close gives the directory free.
func (f *identityFile) close() { _ = f.lock.Close() }

func (f *identityFile) read() identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.now
	is.Revive = slices.Clone(is.Revive)
	return is
}

// update changes the identity. When it cannot be written it holds in memory all
// the same, and flush tries again.
func (f *identityFile) update(change func(*identity)) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	next := f.read()
	change(&next)
	f.mu.Lock()
	f.now = next
	f.mu.Unlock()
	return f.writeLocked(next)
}

// flush writes what update could not.
func (f *identityFile) flush() error {
	f.writing.Lock()
	defer f.writing.Unlock()
	if !f.unwritten {
		return nil
	}
	return f.writeLocked(f.read())
}

// writeLocked replaces the file; the caller holds f.writing. renameio syncs the
// file but not the directory, and an incarnation must not go back.
func (f *identityFile) writeLocked(is identity) error {
	f.unwritten = true
	text, err := json.MarshalIndent(is, "", "  ")
	if err != nil {
		return fmt.Errorf("write the agent's identity: %w", err)
	}
	if err := renameio.WriteFile(f.path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the agent's identity: %w", err)
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return fmt.Errorf("write the agent's identity: %w", err)
	}
	f.unwritten = false
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return dir.Sync()
}
