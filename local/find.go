package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/muster-cloud/muster"
)

const (
	// systemHome is where servers that root starts announce themselves.
	systemHome = "/run/muster"
	// openNoFollow refuses a link in place of a file, and does not wait for a pipe.
	openNoFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
)

// Lookup reads the environment, as os.LookupEnv does.
type Lookup func(name string) (string, bool)

// homeVariable names the one directory in which servers announce themselves and are looked for.
const homeVariable = "MUSTER_RUN_DIR"

// Home is where a server of this process announces itself: in MUSTER_RUN_DIR if that is set,
// in XDG_RUNTIME_DIR if that is this user's (it outlives a change of user), in the runtime
// directory of a unit of systemd where there is one, else in /run/muster when this is root,
// else below the home directory; empty when there is none of them.
func Home(lookup Lookup) string {
	if dir, _ := lookup(homeVariable); dir != "" {
		return dir
	}
	if dir, _ := lookup("XDG_RUNTIME_DIR"); dir != "" && isOwn(dir) {
		return filepath.Join(dir, "muster")
	}
	if dirs, _ := lookup("RUNTIME_DIRECTORY"); dirs != "" {
		dir, _, _ := strings.Cut(dirs, ":")
		return dir
	}
	if os.Geteuid() == 0 {
		return systemHome
	}
	return belowHome(lookup)
}

func isOwn(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && ownedBy(info, []uint32{self()})
}

// belowHome is for users without a session, such as those that su made.
func belowHome(lookup Lookup) string {
	if dir, _ := lookup("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "muster", "run")
	}
	if home, _ := lookup("HOME"); home != "" {
		return filepath.Join(home, ".local", "state", "muster", "run")
	}
	return ""
}

// homes are where servers of this user and of root may have announced themselves.
func homes(lookup Lookup) []string {
	if dir, _ := lookup(homeVariable); dir != "" {
		return []string{dir}
	}
	dirs := []string{
		Home(lookup),
		"/run/user/" + strconv.Itoa(os.Geteuid()) + "/muster", // another session's
		systemHome, belowHome(lookup),
	}
	return slices.DeleteFunc(dirs, func(dir string) bool { return dir == "" })
}

// Servers returns the servers on this machine that announced themselves and run, in the
// order of where they are looked for: this user's own session first.
func Servers(lookup Lookup) []Server {
	var found []Server
	for _, dir := range homes(lookup) {
		for _, s := range serversIn(dir) {
			same := func(other Server) bool { return other.Addr == s.Addr }
			if !slices.ContainsFunc(found, same) {
				found = append(found, s)
			}
		}
	}
	return found
}

func serversIn(dir string) (found []Server) {
	owners, err := trusted(dir)
	if err != nil {
		return nil
	}
	for path := range announcements(dir) {
		if s, err := read(path, owners...); err == nil && s.reachable() && s.lives(owners...) && keeps(s, owners) {
			found = append(found, *s)
		}
	}
	return found
}

// keeps reports whether the key file belongs to one of the owners. One that cannot be
// seen does: its reader will be told.
func keeps(s *Server, owners []uint32) bool {
	info, err := os.Stat(s.KeyFile)
	return err != nil || ownedBy(info, owners)
}

func self() uint32 { return uint32(os.Geteuid()) }

// trusted returns whose announcements in a directory count: those of its owner, who has
// to be this user or root, and root's. Root trusts the owner of /run/muster too, whoever it is: only
// root can have given it to them, as systemd does for a unit with a user of its own.
func trusted(dir string) ([]uint32, error) {
	info, err := os.Lstat(dir)
	if err == nil && dir == systemHome && info.Mode()&os.ModeSymlink != 0 { // as systemd makes it; only root could have
		info, err = os.Stat(dir)
	}
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return nil, muster.Errorf(muster.Invalid, "%s is no directory: servers of this machine announce themselves in one; remove it", dir)
	case info.Mode().Perm()&0o022 != 0:
		return nil, muster.Errorf(muster.Forbidden, "%s can be changed by others than its owner (mode %04o), so that they could have keys sent to them: run chmod 755 %s", dir, info.Mode().Perm(), dir)
	case stat.Uid != self() && stat.Uid != 0 && (self() != 0 || dir != systemHome):
		return nil, fmt.Errorf("%s belongs to somebody else (uid %d)", dir, stat.Uid)
	}
	return []uint32{stat.Uid, self(), 0}, nil
}
