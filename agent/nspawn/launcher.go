package nspawn

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// launcher is the part that depends on who manages the host's cgroups.
type launcher interface {
	// hasten may do early what makes a launch quicker. It returns when that is done.
	hasten()
	// place notes in the record which groups the machine will have.
	place(r *record) error
	// prepare makes them, with all limits but the CPU quota: that would slow the start down, and the
	// supervisor sets it before the payload runs.
	prepare(r record) error
	// start runs a supervisor that outlives the agent. It inherits the files as its descriptors 3, 4, …
	start(m machine, verb string, files ...*os.File) (*os.Process, error)
	// clear removes what is left for no machine, given the record of the last one.
	clear(r record)
}

// direct makes the groups itself, below the agent's own.
type direct struct {
	opts Options
}

func (l direct) hasten() {
	if own, err := cgroup.Find(""); err == nil {
		_ = own.Hasten() // it is only slower without
	}
}

func (l direct) place(r *record) error {
	own, err := cgroup.Find("")
	if err != nil {
		return err
	}
	// No machine can have the supervisors' name. Each state directory has its own, which it can remove.
	supervisors := fmt.Sprintf("_supervisors-%x", sha256.Sum256([]byte(l.opts.StateDir)))[:24]
	r.Group = own.Group(l.opts.CgroupPrefix + "/" + r.Spec.Machine)
	r.Supervisors = own.Group(l.opts.CgroupPrefix + "/" + supervisors)
	return nil
}

func (l direct) prepare(r record) error {
	if err := r.Supervisors.Create(); err != nil {
		return err
	}
	if err := r.Group.Create(); err != nil {
		return err
	}
	return r.Group.LimitSpace(r.Limits)
}

func (l direct) clear(r record) {
	r.Supervisors.RemoveEmpty()
	r.Supervisors.Parent().RemoveEmpty()
}

func (l direct) start(m machine, verb string, files ...*os.File) (*os.Process, error) {
	self := l.opts.Self
	if self == "" {
		var err error
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	log, err := os.OpenFile(m.path("supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(self, "shim", verb, m.dir())
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = files
	// Cloneflags, not Unshareflags: those would make the copied mounts private, and what the host unmounts
	// would stay mounted in here. The supervisor makes them slaves itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor of %s: %w", m.name, err)
	}
	return cmd.Process, nil
}
