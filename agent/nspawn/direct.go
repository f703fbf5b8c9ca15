package nspawn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// direct makes the groups itself, below the agent's own.
type direct struct {
	opts Options
}

func (l direct) check(context.Context) error {
	_, err := cgroup.Find("")
	return err
}

func (l direct) hasten() {
	if own, err := cgroup.Find(""); err == nil {
		_ = own.Hasten() // it is only slower without
	}
}

func (l direct) place(_ context.Context, r *record) error {
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
	err := r.Supervisors.Create()
	if errors.Is(err, unix.EBUSY) { // on v2, and this process is in the way
		if err = l.makeRoom(); err == nil {
			err = r.Supervisors.Create()
		}
	}
	if err != nil {
		return err
	}
	if err := r.Group.Create(); err != nil {
		return err
	}
	return r.Group.LimitSpace(r.Limits)
}

func (l direct) makeRoom() error {
	own, err := cgroup.Find("")
	if err != nil {
		return err
	}
	if runsSystemd() {
		l.opts.Logger.Warn("systemd cannot start the agent's unit again while machines are in it: use --launcher systemd, or DelegateSubgroup=agent from systemd 254 on")
	}
	return own.MakeRoom()
}

func (l direct) start(_ context.Context, m machine, _ record, to handover) (*os.Process, error) {
	self, err := l.opts.self()
	if err != nil {
		return nil, err
	}
	log, err := m.supervisorLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(self, "shim", to.verb, m.dir())
	cmd.Dir = "/"
	cmd.Env = l.opts.environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = to.lock, to.ready, log
	// Cloneflags, not Unshareflags: those would make the copied mounts private, and what the host unmounts
	// would stay mounted in here. The supervisor makes them slaves itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor of %s: %w", m.name, err)
	}
	return cmd.Process, nil
}

// clear removes the groups that machines share, given the record of the last one; those that are in use stay.
func (l direct) clear(r record) {
	r.Supervisors.RemoveEmpty()
	r.Supervisors.Parent().RemoveEmpty()
}
