package testhost

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed scripts
var scripts embed.FS

// script makes a script of the package in a directory and returns its path.
func script(dir, name string) (string, error) {
	text, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, text, 0o755)
}

// BuildRoot makes a Debian root in a directory that is not there yet, out of packages that this machine has and what
// they depend on. It takes about a second.
func BuildRoot(ctx context.Context, dir string, packages ...string) error {
	work, err := os.MkdirTemp("", "testhost-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	path, err := script(work, "mkdeb.sh")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, path, append([]string{dir}, packages...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("make a Debian root: %w: %s", err, out)
	}
	return nil
}

// hostPackages are what a host of instances and the tests on it need.
func hostPackages() []string {
	return []string{
		"systemd-sysv", "systemd", "dbus", "systemd-container", "iproute2", "busybox-static", "coreutils", "bash", "dash",
		"util-linux", "sed", "grep", "mawk", "nftables", "procps", "base-files", "libc-bin", "hostname",
	}
}

// masked are units that a host has no use for: they would only delay it.
func masked() []string {
	return []string{"console-getty.service", "getty.target", "systemd-timesyncd.service", "systemd-networkd.service", "systemd-resolved.service", "timers.target"}
}

// buildHost makes the root of a host.
func buildHost(ctx context.Context, dir string) error {
	if err := BuildRoot(ctx, dir, hostPackages()...); err != nil {
		return err
	}
	if _, err := script(dir, "init.sh"); err != nil {
		return err
	}
	for _, unit := range masked() {
		path := filepath.Join(dir, "etc/systemd/system", unit)
		_ = os.RemoveAll(path) // it may be enabled
		if err := os.Symlink("/dev/null", path); err != nil {
			return err
		}
	}
	return nil
}
