package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/archive"
)

// The defaults of Options.
const (
	DefaultReserve  = 256 << 20
	DefaultParallel = 2
)

const (
	suffix  = ".tar.zst"
	partial = ".import-" // what is being written; a crash can leave it
	prefix  = "sha256:"
)

// Options are the settings of a Store. Only Dir has to be given.
type Options struct {
	Dir      string
	Limits   archive.Limits
	Reserve  int64 // bytes that an import leaves free on the disk; 0: DefaultReserve, 256 MiB
	Parallel int   // imports at a time, the rest wait; 0: DefaultParallel
}

// Store keeps the archives. Its methods are safe for concurrent use.
type Store struct {
	o     Options
	slots chan struct{}

	mu   sync.Mutex     // no archive is published or removed without it
	held map[string]int // archives that are about to get a name, by digest
}

// Open makes the directory if need be, and removes what a crash left in it.
func Open(o Options) (*Store, error) {
	if o.Reserve == 0 {
		o.Reserve = DefaultReserve
	}
	if o.Parallel == 0 {
		o.Parallel = DefaultParallel
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, muster.Errorf(muster.Invalid, "the directory of the images cannot be made: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(o.Dir, partial+"*"))
	if err != nil {
		return nil, fmt.Errorf("images in %s: %w", o.Dir, err)
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove half of an image: %w", err)
		}
	}
	return &Store{o: o, slots: make(chan struct{}, o.Parallel), held: map[string]int{}}, nil
}

// Archive is one that is kept. It cannot go until it is released.
type Archive struct {
	archive.Summary
	Size    int64 // as it is kept, in bytes
	release func()
}

// Release lets it go unless it is needed by then. It may be called once.
func (a *Archive) Release() { a.release() }

// Import keeps an archive, which may be plain or compressed by gzip or zstd. Once all of it is read,
// whole says whether that is what was sent; nil: it is. INVALID or LIMIT: the archive is to blame;
// UNAVAILABLE: the disk is full, or it could not be read to its end.
func (s *Store) Import(ctx context.Context, from io.Reader, whole func() error) (*Archive, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return nil, muster.Errorf(muster.Unavailable, "the import waited too long for others to finish: try again: %w", ctx.Err())
	}
	f, err := os.CreateTemp(s.o.Dir, partial)
	if err != nil {
		return nil, s.failed(err)
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // gone by then when it was published
	}()
	made, err := archive.Canonical(ctx, &roomy{to: f, reserve: s.o.Reserve}, from, s.o.Limits)
	if err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(from, 1<<20)) // padding
	}
	if err == nil && whole != nil {
		err = whole()
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, s.failed(err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, s.failed(err)
	}
	kept := &Archive{Summary: made, Size: info.Size()}
	if err := s.publish(f.Name(), kept); err != nil {
		return nil, s.failed(err)
	}
	return kept, nil
}

// publish makes a whole archive one that is kept. It takes the place of one of its digest, which
// may have been damaged on the disk since.
func (s *Store) publish(path string, a *Archive) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Rename(path, s.path(a.Digest)); err != nil {
		return err
	}
	if err := syncDir(s.o.Dir); err != nil {
		return err
	}
	s.held[a.Digest]++
	a.release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[a.Digest]--; s.held[a.Digest] == 0 {
			delete(s.held, a.Digest)
		}
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// failed says what an import failed with, and what to do.
func (s *Store) failed(err error) error {
	if refused, ok := errors.AsType[*archive.Refused](err); ok {
		if refused.Large {
			return &muster.Error{Code: muster.Limit, Message: refused.Error(), Err: err, Details: map[string]any{"limit": "image"}}
		}
		return muster.Errorf(muster.Invalid, "%w", err)
	}
	if known, ok := errors.AsType[*muster.Error](err); ok {
		return known
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return muster.Errorf(muster.Unavailable, "the disk of the images in %s is full: free some space there, then import again: %w", s.o.Dir, err)
	}
	return muster.Errorf(muster.Unavailable, "the image was not imported: %w; try again", err)
}

// Open opens the archive of a digest. NOT_FOUND when it is not kept.
func (s *Store) Open(digest string) (*os.File, error) {
	if err := muster.CheckDigest("digest", digest); err != nil {
		return nil, err
	}
	f, err := os.Open(s.path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, muster.Errorf(muster.NotFound, "the server has no archive with the digest %s: it was removed; import the image again", digest)
	}
	if err != nil {
		return nil, fmt.Errorf("open the archive %s: %w", digest, err)
	}
	return f, nil
}

// Sweep removes every archive that is neither needed nor about to get a name, and
// returns their digests.
func (s *Store) Sweep(needed func() map[string]bool) (removed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the images: %w", err)
	}
	keep := needed() // with the lock: what got a name since is among them, or is held
	for _, entry := range entries {
		hex, ok := strings.CutSuffix(entry.Name(), suffix)
		digest := prefix + hex
		if !ok || muster.CheckDigest("digest", digest) != nil || keep[digest] || s.held[digest] > 0 {
			continue
		}
		if err := os.Remove(s.path(digest)); err != nil {
			return removed, fmt.Errorf("remove the archive %s: %w", digest, err)
		}
		removed = append(removed, digest)
	}
	return removed, nil
}

// path is where the archive of a valid digest is.
func (s *Store) path(digest string) string {
	return filepath.Join(s.o.Dir, strings.TrimPrefix(digest, prefix)+suffix)
}
