package nspawn

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/muster-cloud/muster"
)

// Launcher is what starts machines and manages their cgroups.
type Launcher string

// The launchers.
const (
	// Auto is Systemd where that works, else Direct.
	Auto Launcher = "auto"
	// Systemd has the host's systemd run each machine as a transient unit of its own.
	Systemd Launcher = "systemd"
	// Direct makes the cgroups itself, below the agent's own: for hosts that systemd does not run.
	Direct Launcher = "direct"
)

// launcher is the part that depends on who manages the host's cgroups.
type launcher interface {
	// check says, as an UNAVAILABLE error, what the host lacks for it.
	check(ctx context.Context) error
	// hasten may do early what makes a launch quicker. It returns when that is done.
	hasten()
	// place notes in the record which groups the machine will have.
	place(ctx context.Context, r *record) error
	// prepare makes them where that is the launcher's business, with all limits but the CPU quota: that would slow
	// the start down, and the supervisor sets it before the payload runs.
	prepare(r record) error
	// start runs a supervisor that outlives the agent. It returns the process where that is a child.
	start(ctx context.Context, m machine, r record, to handover) (*os.Process, error)
}

// handover is what a supervisor is given: what to do, the machine's lock and the pipe on which it says that the payload runs.
type handover struct {
	verb        string
	lock, ready *os.File
}

// choice is the launcher that was decided for.
type choice struct {
	mu sync.Mutex
	launcher
}

// launcher returns what new machines are launched with. Auto is decided at the first call.
func (d *Driver) launcher(ctx context.Context) launcher {
	d.choice.mu.Lock()
	defer d.choice.mu.Unlock()
	if d.choice.launcher == nil {
		d.choice.launcher = d.decide(ctx)
	}
	return d.choice.launcher
}

func (d *Driver) decide(ctx context.Context) launcher {
	direct, units := direct{opts: d.opts}, units{opts: d.opts}
	switch d.opts.Launcher {
	case Direct:
		return direct
	case Systemd:
		return units
	}
	if !runsSystemd() {
		return direct
	}
	if err := units.check(context.WithoutCancel(ctx)); err != nil { // it is decided for all callers
		d.opts.Logger.Log(ctx, slog.LevelWarn, "systemd does not launch the machines", "err", err)
		return direct
	}
	return units
}

// validate refuses a name that is none of a launcher.
func (l Launcher) validate() error {
	switch l {
	case Auto, Systemd, Direct:
		return nil
	}
	return muster.Errorf(muster.Invalid, "%.80q is no launcher; it is auto, systemd or direct", string(l))
}

// environ returns the environment of a supervisor.
func (o Options) environ() []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}, o.Environ...)
}

// self returns the binary that has the command `shim`.
func (o Options) self() (string, error) {
	if o.Self != "" {
		return o.Self, nil
	}
	return os.Executable()
}
