package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/muster-cloud/muster"
)

// Need is something that a host must have to run machines.
type Need string

// The needs.
const (
	NeedRoot     Need = "root"
	NeedNspawn   Need = "systemd-nspawn"
	NeedStateDir Need = "state directory"
	NeedOverlay  Need = "overlay"
	NeedLauncher Need = "launcher"
)

// Lack is a need that is not met, with the remedy.
type Lack struct {
	Need Need
	Err  error
}

// Check says everything that the host lacks to run machines, each with the remedy, as one UNAVAILABLE error; or ctx's error.
func (d *Driver) Check(ctx context.Context) error {
	lacks, err := d.Lacks(ctx)
	if err != nil || len(lacks) == 0 {
		return err
	}
	texts := make([]string, len(lacks))
	for i, lack := range lacks {
		texts[i] = lack.Err.Error()
	}
	return muster.Errorf(muster.Unavailable, "this host cannot run machines: %s", strings.Join(texts, "; "))
}

// Lacks is Check need by need. The error is ctx's, or INVALID options.
func (d *Driver) Lacks(ctx context.Context) ([]Lack, error) {
	if err := d.opts.Launcher.validate(); err != nil {
		return nil, err
	}
	var lacks []Lack
	note := func(need Need, err error) {
		if err != nil {
			lacks = append(lacks, Lack{need, err})
		}
	}
	if os.Geteuid() != 0 {
		note(NeedRoot, errors.New("machines need root: run the agent as root"))
	}
	if _, err := exec.LookPath("systemd-nspawn"); err != nil {
		note(NeedNspawn, errors.New("systemd-nspawn is not in PATH: apt-get install systemd-container"))
	}
	if !filepath.IsAbs(d.opts.StateDir) || strings.ContainsAny(d.opts.StateDir, `:,\"`) {
		note(NeedStateDir, fmt.Errorf("the state directory %q cannot be mounted on: give an absolute path without colons, commas, quotes and backslashes", d.opts.StateDir))
	}
	note(NeedOverlay, checkOverlay())
	note(NeedLauncher, d.launcher(ctx).check(ctx))
	return lacks, ctx.Err() // it may be why something does not answer
}

// checkOverlay looks for overlayfs in the kernel, loading its module if need be.
func checkOverlay() error {
	if hasFilesystem("overlay") {
		return nil
	}
	return errors.New("the kernel has no overlayfs: modprobe overlay")
}
