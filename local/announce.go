package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/muster-cloud/muster"
)

// extension is what the names of announcements end with.
const extension = ".server"

// Announce has the programs of this machine find s, of which Addr and the files are set,
// until withdraw is called. The directory is the first of those that Home names.
func Announce(lookup Lookup, s Server) (withdraw func(), err error) {
	dir := Home(lookup)
	if dir == "" {
		return nil, muster.Errorf(muster.Invalid, "there is no directory to announce the server in: set XDG_RUNTIME_DIR or HOME")
	}
	if err := s.identify(); err != nil {
		return nil, fmt.Errorf("announce the server: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("announce the server: %w", err)
	}
	if _, err := trusted(dir); err != nil {
		return nil, err
	}
	sweep(dir)
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("announce the server: %w", err)
	}
	path := filepath.Join(dir, s.name())
	if err := renameio.WriteFile(path, text, 0o644, renameio.WithTempDir(dir), renameio.IgnoreUmask()); err != nil {
		return nil, fmt.Errorf("announce the server: %w", err)
	}
	return func() {
		if now, err := os.ReadFile(path); err == nil && string(now) == string(text) { // not another one's
			_ = os.Remove(path) // what stays behind counts no more
		}
	}, nil
}

// name is that of its file: an address is one in its network namespace.
func (s *Server) name() string {
	return s.Addr.String() + "-" + strings.Trim(s.Network, "net:[]") + extension
}

// sweep takes away what servers of this user left behind.
func sweep(dir string) {
	for path := range announcements(dir) {
		s, err := read(path, self())
		if err == nil && !s.lives(self()) || errors.Is(err, errUnreadable) {
			_ = os.Remove(path)
		}
	}
}

// announcements are the files in a directory that may be some.
func announcements(dir string) iter.Seq[string] {
	return func(yield func(string) bool) {
		entries, _ := os.ReadDir(dir) // without it there are none
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), extension) && !yield(filepath.Join(dir, e.Name())) {
				return
			}
		}
	}
}

// errUnreadable is a file of the right owner that is no announcement.
var errUnreadable = errors.New("it is no announcement of a server")

// maxAnnouncement bounds what is read of one, in bytes.
const maxAnnouncement = 16 << 10

// read reads an announcement that one of the owners made, and nobody else can change.
func read(path string, owners ...uint32) (*Server, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|openNoFollow, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || !ownedBy(info, owners) || info.Mode().Perm()&0o022 != 0 {
		return nil, fmt.Errorf("%s: %w", path, fs.ErrPermission)
	}
	if info.Size() > maxAnnouncement {
		return nil, errUnreadable
	}
	s := new(Server)
	if err := json.NewDecoder(file).Decode(s); err != nil || !s.Addr.IsValid() || s.PID <= 0 {
		return nil, errUnreadable
	}
	return s, nil
}
