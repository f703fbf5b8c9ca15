package testhost

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// prefix begins the name of a host, which goes on with the process of its test.
const prefix = "muster-host-"

// groups returns the cgroups of a host and below, parents first.
func groups(name string) []string {
	var dirs []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path+"/", "/"+name+"/") {
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs
}

// killGroups ends all processes of a host.
func killGroups(name string) {
	for _, dir := range groups(name) {
		if filepath.Base(dir) == name {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // only cgroup2 has it
		}
	}
}

// sweep removes what is left of a host whose processes are killed.
func sweep(name string) error {
	err := sweepGroups(name)
	return errors.Join(err, os.RemoveAll(filepath.Join("/var/tmp", name)))
}

// sweepGroups removes the cgroups of such a host.
func sweepGroups(name string) error {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		killGroups(name)
		for _, dir := range slices.Backward(groups(name)) {
			_ = syscall.Rmdir(dir)
		}
		if left = groups(name); len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left: %s", strings.Join(left, " "))
	}
	return nil
}

// sweepDead sweeps after tests whose process is gone.
func sweepDead() {
	names := map[string]bool{}
	dirs, _ := filepath.Glob("/var/tmp/" + prefix + "*")
	for _, path := range append(dirs, groupsOfHosts()...) {
		names[filepath.Base(path)] = true
	}
	for name := range names {
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && errors.Is(syscall.Kill(n, 0), syscall.ESRCH) {
			_ = sweep(name) // the next one tries again
		}
	}
}

func groupsOfHosts() []string {
	var dirs []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), prefix) {
			dirs = append(dirs, path)
			return filepath.SkipDir
		}
		return nil
	})
	return dirs
}
