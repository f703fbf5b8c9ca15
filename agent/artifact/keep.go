package artifact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// digest is how what is kept is called.
var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// halfway begins the name of what is not in its place yet.
const halfway = ".new-"

// Keep keeps what was fetched, until there is need for its room: what was used last goes
// last, and what is in use, by its checksums, never. It is durable once Keep returns. What is kept
// already is not kept twice. LIMIT: there is no room beside what is in use.
func (f *Fetcher) Keep(got *Fetched, used map[string]bool) error {
	if got.kept || !f.keeps() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	others, err := f.copies()
	if err != nil {
		return err
	}
	others = slices.DeleteFunc(others, func(c keptCopy) bool { return c.digest == got.SHA256 })
	if needed(others, used)+got.Size > f.o.Keep {
		return muster.Errorf(muster.Limit, "the files of this node's services are more than the %d bytes that are kept of them: raise --artifact-keep", f.o.Keep)
	}
	if err := f.trim(others, f.o.Keep-got.Size, used); err != nil {
		return err
	}
	return f.name(got)
}

// Tidy removes what is no whole artifact, and what is too much since less is to be kept
// than before. It is called once, before the first Keep.
func (f *Fetcher) Tidy(used map[string]bool) error {
	if f.o.Dir == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	entries, err := os.ReadDir(f.o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !digest.MatchString(entry.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(f.o.Dir, entry.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("tidy %s: %w", f.o.Dir, err)
	}
	all, err := f.copies()
	if err != nil {
		return err
	}
	return f.trim(all, max(f.o.Keep, 0), used)
}

// Release removes all that is kept and not in use, and returns how much that was, in bytes.
func (f *Fetcher) Release(used map[string]bool) (freed int64, err error) {
	if f.o.Dir == "" {
		return 0, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.copies()
	if err != nil {
		return 0, err
	}
	for _, c := range all {
		freed += c.size
	}
	freed -= needed(all, used)
	return freed, f.trim(all, 0, used)
}

// Keeps reports whether there is a copy of an artifact. Whether it is whole shows when it is fetched.
func (f *Fetcher) Keeps(checksum string) bool {
	if !f.keeps() || !digest.MatchString(checksum) {
		return false
	}
	_, err := os.Lstat(f.place(checksum))
	return err == nil
}

func (f *Fetcher) keeps() bool { return f.o.Dir != "" && f.o.Keep > 0 }

func (f *Fetcher) place(digest string) string { return filepath.Join(f.o.Dir, digest) }

// keptCopy is an artifact in its place.
type keptCopy struct {
	digest string
	size   int64
	used   time.Time // last
}

// copies are what is kept, the one that was used longest ago first.
func (f *Fetcher) copies() ([]keptCopy, error) {
	entries, err := os.ReadDir(f.o.Dir)
	if err != nil {
		return nil, fmt.Errorf("list the artifacts that are kept: %w", err)
	}
	var all []keptCopy
	for _, entry := range entries {
		if !digest.MatchString(entry.Name()) {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("look at the artifacts that are kept: %w", err)
		}
		all = append(all, keptCopy{entry.Name(), info.Size(), info.ModTime()})
	}
	slices.SortFunc(all, func(a, b keptCopy) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.digest, b.digest)) })
	return all, nil
}

// needed is how much of it is in use, in bytes.
func needed(all []keptCopy, used map[string]bool) (total int64) {
	for _, c := range all {
		if used[c.digest] {
			total += c.size
		}
	}
	return total
}

// trim removes copies that are not in use until those that are left have no more than so many bytes.
func (f *Fetcher) trim(all []keptCopy, most int64, used map[string]bool) error {
	var left int64
	for _, c := range all {
		left += c.size
	}
	for _, c := range all {
		if left <= most || used[c.digest] {
			continue
		}
		if err := os.Remove(f.place(c.digest)); err != nil {
			return fmt.Errorf("make room among the artifacts that are kept: %w", err)
		}
		left -= c.size
	}
	return nil
}

// name puts a file that has no name in its place, in one step.
func (f *Fetcher) name(got *Fetched) error {
	if err := got.Sync(); err != nil {
		return fmt.Errorf("write an artifact to the disk: %w", err)
	}
	made := filepath.Join(f.o.Dir, halfway+got.SHA256)
	if err := os.Remove(made); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	self := fmt.Sprintf("/proc/self/fd/%d", got.Fd())
	if err := unix.Linkat(unix.AT_FDCWD, self, unix.AT_FDCWD, made, unix.AT_SYMLINK_FOLLOW); err != nil {
		return fmt.Errorf("name an artifact: %w", err)
	}
	if err := os.Rename(made, f.place(got.SHA256)); err != nil {
		return errors.Join(err, os.Remove(made))
	}
	dir, err := os.Open(f.o.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// kept opens the copy of an artifact, or returns nil: there is none, or it is not any more what it was.
// Then it is removed.
func (f *Fetcher) kept(ctx context.Context, checksum string) (*Fetched, error) {
	if !f.keeps() || !digest.MatchString(checksum) {
		return nil, nil
	}
	file, err := os.OpenFile(f.place(checksum), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		f.damaged(checksum, nil, err)
		return nil, nil
	}
	got := &Fetched{File: file, SHA256: checksum, kept: true}
	if err := got.verify(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), file.Close())
		}
		f.damaged(checksum, file, err)
		return nil, file.Close()
	}
	now := time.Now()
	// It may just have made room for another; the file is there for as long as it is open.
	if err := os.Chtimes(f.place(checksum), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.o.Logger.Warn("an artifact cannot be marked as used", "sha256", checksum, "err", err)
	}
	return got, nil
}

// verify reads the file, to see that it is what it is called.
func (got *Fetched) verify(ctx context.Context) error {
	sum, buffer := sha256.New(), make([]byte, 256<<10)
	for {
		n, err := got.Read(buffer)
		got.Size += int64(n)
		sum.Write(buffer[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err := cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
	}
	if found := hex.EncodeToString(sum.Sum(nil)); found != got.SHA256 {
		return fmt.Errorf("it has the checksum %s", found)
	}
	_, err := got.Seek(0, io.SeekStart)
	return err
}

// damaged removes a copy that cannot be used, unless another has taken its place.
func (f *Fetcher) damaged(checksum string, file *os.File, why error) {
	f.o.Logger.Warn("an artifact that is kept here is damaged: it is fetched again", "sha256", checksum, "err", why)
	f.mu.Lock()
	defer f.mu.Unlock()
	if file != nil {
		opened, err := file.Stat()
		there, errThere := os.Lstat(f.place(checksum))
		if err != nil || errThere != nil || !os.SameFile(opened, there) {
			return
		}
	}
	if err := os.RemoveAll(f.place(checksum)); err != nil {
		f.o.Logger.Warn("a damaged artifact cannot be removed", "sha256", checksum, "err", err)
	}
}
