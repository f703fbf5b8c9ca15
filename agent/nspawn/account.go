package nspawn

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// nobody is whom processes run as by default, and their group.
const nobody = 65534

// account is whom a process runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	name     string
	home     string
}

// lookUp finds a user, as NAME, UID, or either with :GROUP. It reads the files of the machine whose root the thread has.
func lookUp(user string) (account, error) {
	if user == "" {
		return account{uid: nobody, gid: nobody, groups: []uint32{nobody}, name: "nobody", home: "/"}, nil
	}
	who, group, hasGroup := strings.Cut(user, ":")
	a, err := lookUpUser(who)
	if err != nil {
		return account{}, err
	}
	if hasGroup {
		if a.gid, err = lookUpGroup(group); err != nil {
			return account{}, err
		}
	}
	if a.groups, err = groupsOf(a); err != nil {
		return account{}, err
	}
	return a, nil
}

func lookUpUser(who string) (account, error) {
	lines, err := database("/etc/passwd", 7)
	if err != nil {
		return account{}, err
	}
	number, isNumber := id(who)
	for _, fields := range lines {
		uid, ok := id(fields[2])
		gid, ok2 := id(fields[3])
		if ok && ok2 && (fields[0] == who || isNumber && uid == number) {
			return account{uid: uid, gid: gid, name: fields[0], home: fields[5]}, nil
		}
	}
	if isNumber {
		return account{uid: number, gid: number, name: who, home: "/"}, nil
	}
	return account{}, fmt.Errorf("there is no user %q in the instance: give one of its /etc/passwd, or a number", who)
}

func lookUpGroup(group string) (uint32, error) {
	lines, err := database("/etc/group", 4)
	if err != nil {
		return 0, err
	}
	for _, fields := range lines {
		if gid, ok := id(fields[2]); ok && fields[0] == group {
			return gid, nil
		}
	}
	if gid, ok := id(group); ok {
		return gid, nil
	}
	return 0, fmt.Errorf("there is no group %q in the instance: give one of its /etc/group, or a number", group)
}

// groupsOf returns the groups that a user is a member of, the own one first.
func groupsOf(a account) ([]uint32, error) {
	lines, err := database("/etc/group", 4)
	if err != nil {
		return nil, err
	}
	groups := []uint32{a.gid}
	for _, fields := range lines {
		for member := range strings.SplitSeq(fields[3], ",") {
			if gid, ok := id(fields[2]); ok && member == a.name && gid != a.gid && len(groups) < 1000 {
				groups = append(groups, gid)
			}
		}
	}
	return groups, nil
}

// id reads a user's or group's number. The highest one means none.
func id(text string) (uint32, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), err == nil && n < 1<<32-1
}

// database reads a file of lines with colons; none when it is not there. The machine may have put anything in its place.
func database(path string, fields int) ([][]string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s of the instance is no file", path), err)
	}
	const limit = 1 << 20
	text, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil, fmt.Errorf("read %s of the instance: %w", path, err)
	}
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if parts := strings.Split(strings.TrimRight(line, "\r\n"), ":"); len(parts) >= fields {
			lines = append(lines, parts)
		}
	}
	return lines, nil
}
