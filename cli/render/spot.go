package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// The files in the directory beside a file that is kept. The new text has the file's own
// name, which some checks go by.
const (
	stateName  = ".state.json"
	beforeName = ".before"
)

// spot is the place of a file that is kept, and the directory beside it, .NAME.muster,
// which no pattern of a configuration's includes matches. While it is open it is locked.
type spot struct {
	path string // without symbolic links
	dir  string
	lock *os.File
	had  bool // there was a file when one was placed
	state
}

// state is what is remembered of a file.
type state struct {
	// Entries are what each lookup found for the text in place; nil: nobody knows.
	Entries Calls `json:"entries"`
	// Unfinished: a new text was put in place, and its check or its reload may not be over.
	Unfinished bool `json:"unfinished,omitempty"`
}

// openSpot finds the place of a file, makes it ready to be written and puts right what a
// process left that was killed; repaired says that it did.
func openSpot(output string) (s *spot, repaired bool, err error) {
	s = &spot{}
	if s.path, err = resolve(output); err != nil {
		return nil, false, err
	}
	s.dir = filepath.Join(filepath.Dir(s.path), "."+filepath.Base(s.path)+".muster")
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, false, err
	}
	if s.lock, err = os.Open(s.dir); err != nil {
		return nil, false, err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, false, errors.Join(fmt.Errorf("another muster render keeps it (%w)", err), s.close())
	}
	if repaired, err = s.recover(); err != nil {
		return nil, false, errors.Join(err, s.close())
	}
	return s, repaired, nil
}

// close lets go of the lock, also where a command that is just being started still has the file.
func (s *spot) close() error {
	return errors.Join(unix.Flock(int(s.lock.Fd()), unix.LOCK_UN), s.lock.Close())
}

// resolve returns where a file really is, or will be, and refuses what is no file.
func resolve(output string) (string, error) {
	path, err := filepath.Abs(output)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		return filepath.Join(dir, filepath.Base(path)), err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", path)
	}
	return path, err
}

// readState reads what is remembered without changing anything.
func (s *spot) readState() error {
	text, err := os.ReadFile(filepath.Join(s.dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &s.state); err != nil {
		s.state = state{} // nobody knows: the guard is then the stricter
	}
	return nil
}

func (s *spot) save(next state) error {
	text, err := json.Marshal(next)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, stateName)
	// A fixed name: whoever is killed leaves no more than one, and the lock keeps others away.
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	s.state = next
	return syncDir(s.dir)
}

// recover puts back what was there before a text that nobody finished.
func (s *spot) recover() (bool, error) {
	if err := s.readState(); err != nil {
		return false, err
	}
	if !s.Unfinished {
		return false, nil
	}
	err := os.Rename(s.before(), s.path)
	if errors.Is(err, fs.ErrNotExist) { // there was none, or it never came to that
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, syncDir(filepath.Dir(s.path))
}

func (s *spot) before() string    { return filepath.Join(s.dir, beforeName) }
func (s *spot) candidate() string { return filepath.Join(s.dir, filepath.Base(s.path)) }

// present returns the text in place, nil if there is no file.
func (s *spot) present() ([]byte, error) {
	text, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// prepare writes the new text beside the file, with the mode and the owner of that which
// is in place.
func (s *spot) prepare(text []byte) error {
	if err := os.Remove(s.candidate()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(s.candidate(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, s.likePresent(file), file.Sync(), file.Close())
}

func (s *spot) likePresent(file *os.File) error {
	info, err := os.Stat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	own, err := file.Stat()
	if err != nil {
		return err
	}
	was, is := info.Sys().(*syscall.Stat_t), own.Sys().(*syscall.Stat_t)
	if was.Uid != is.Uid || was.Gid != is.Gid {
		if err := file.Chown(int(was.Uid), int(was.Gid)); err != nil {
			return err
		}
	}
	return file.Chmod(info.Mode().Perm()) // behind chown, which may take bits away
}

// place puts the prepared text into the file's place; what was there is kept until finish
// or undo. After an error nothing has changed.
func (s *spot) place() error {
	if err := s.forget(); err != nil {
		return err
	}
	if err := s.save(state{Entries: s.Entries, Unfinished: true}); err != nil {
		return err
	}
	err := os.Link(s.path, s.before())
	s.had = err == nil
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = os.Rename(s.candidate(), s.path)
	}
	if err != nil {
		return errors.Join(err, s.save(state{Entries: s.Entries}), s.forget())
	}
	if err := syncDir(filepath.Dir(s.path)); err != nil {
		return errors.Join(err, s.undo())
	}
	return nil
}

// undo puts back what was there before place: nothing, if nothing was.
func (s *spot) undo() error {
	var err error
	if s.had {
		err = os.Rename(s.before(), s.path)
	} else {
		err = os.Remove(s.path)
	}
	if err != nil {
		return err
	}
	return errors.Join(syncDir(filepath.Dir(s.path)), s.save(state{Entries: s.Entries}))
}

// finish keeps the text that was placed, and what it is from.
func (s *spot) finish(calls Calls) error {
	if err := s.save(state{Entries: calls}); err != nil {
		return err
	}
	return s.forget()
}

// forget removes the text that was kept for undo.
func (s *spot) forget() error {
	if err := os.Remove(s.before()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// drop forgets a prepared text.
func (s *spot) drop() { _ = os.Remove(s.candidate()) }

// syncDir makes a rename last.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
