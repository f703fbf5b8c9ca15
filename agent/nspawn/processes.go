package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// serviceAt returns a process's place. It has the files of a machine's, in a directory of the processes'; no
// machine's name has a dot, so that the two names stay apart.
func (d *Driver) serviceAt(ref driver.ProcessRef) machine {
	return machine{state: filepath.Join(d.opts.StateDir, "processes"), name: ref.Machine + "." + ref.Name}
}

// refOf is the reverse of serviceAt.
func refOf(name string) driver.ProcessRef {
	m, n, _ := strings.Cut(name, ".")
	return driver.ProcessRef{Machine: m, Name: n}
}

// StartProcess implements driver.Processes.
func (d *Driver) StartProcess(ctx context.Context, spec driver.ProcessSpec) (driver.ProcessStatus, error) {
	if err := spec.Validate(); err != nil {
		return driver.ProcessStatus{}, err
	}
	// Of the machine too: its removal waits for the processes that there are.
	unlock, err := d.keys.lock(ctx, spec.Machine)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	defer unlock()
	at := d.serviceAt(spec.ProcessRef)
	unlock, err = d.keys.lock(ctx, at.name)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	defer unlock()
	r, err := d.planService(ctx, spec)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	lock, err := d.putService(ctx, at, r)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	defer lock.Close()
	if err := d.runService(ctx, at, spec, lock); err != nil { // what was begun goes on, or is found to have been interrupted
		return driver.ProcessStatus{}, err
	}
	return d.observedService(ctx, at)
}

// planService returns what to write down of a start.
func (d *Driver) planService(ctx context.Context, spec driver.ProcessSpec) (serviceRecord, error) {
	r, p, err := d.runningMachine(ctx, spec.Machine)
	if err != nil {
		return serviceRecord{}, err
	}
	return serviceRecord{
		Spec:     spec,
		Leader:   p.Leader,
		Group:    r.Group.Below("process-" + spec.Name),
		Aside:    r.aside(),
		HostBoot: r.HostBoot,
	}, nil
}

// runningMachine returns what is known of a machine that runs.
func (d *Driver) runningMachine(ctx context.Context, name string) (r record, p progress, err error) {
	if !isName(name) {
		return r, p, fmt.Errorf("%w: %.80q", driver.ErrNotFound, name)
	}
	m := d.machine(name)
	status, _, err := observe(m)
	if err != nil {
		return r, p, err
	}
	if status.State != driver.Running {
		return r, p, muster.Errorf(muster.Conflict, "the instance's machine %s does not run: start the instance first", name)
	}
	r, err = m.record()
	if err == nil {
		p, err = m.progress()
	}
	return r, p, errors.Join(err, ctx.Err())
}

// aside is the group for supervisors of processes: where the machine's supervisor is, so that they end neither with the
// agent's unit nor count as the payload's.
func (r record) aside() cgroup.Group {
	switch {
	case r.Unit == "":
		return r.Supervisors
	case r.Group.V2:
		return r.Group.Below("supervisor")
	}
	return r.Group
}

// putService makes a process's place, or clears one that has ended, and returns its lock.
func (d *Driver) putService(ctx context.Context, at machine, r serviceRecord) (*os.File, error) {
	status, err := d.observedService(ctx, at)
	switch {
	case err == nil && status.State != driver.Exited:
		return nil, fmt.Errorf("%w and runs: %s", driver.ErrExists, r.Spec.ProcessRef)
	case err != nil && !errors.Is(err, driver.ErrNotFound):
		return nil, err
	}
	for _, dir := range []string{at.dir(), filepath.Dir(at.lockPath())} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	lock, err := at.tryLock()
	if err != nil {
		return nil, err
	}
	if lock == nil {
		return nil, fmt.Errorf("%w: somebody works on %s", driver.ErrExists, r.Spec.ProcessRef)
	}
	for _, file := range []string{"state.json", "stopping", "exit.json"} {
		if err := os.Remove(at.path(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, lock.Close())
		}
	}
	if err := at.replace("process.json", r); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// runService starts the supervisor and waits for the process to run or to have ended.
func (d *Driver) runService(ctx context.Context, at machine, spec driver.ProcessSpec, lock *os.File) error {
	ready, told, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	given, err := handOver(order{Command: spec.Command, Env: spec.Env, User: spec.User, Dir: spec.Dir})
	if err != nil {
		return errors.Join(err, told.Close())
	}
	child, err := d.startAttendant(verbService, at, []*os.File{lock, told, given})
	err = errors.Join(err, told.Close(), given.Close())
	if err != nil {
		return err
	}
	d.own(at, child)
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	n, _ := ready.Read(make([]byte, 1))
	if n == 1 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := lock.Close(); err != nil { // else it would never be free
		return err
	}
	return d.awaitEnd(ctx, at)
}

// startAttendant runs a supervisor with the first files as its standard input and output, and the others after its
// standard error.
func (d *Driver) startAttendant(verb string, at machine, files []*os.File) (*os.Process, error) {
	log, err := at.supervisorLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd, sealed, err := d.shimCommand(verb, at.dir())
	if err != nil {
		return nil, err
	}
	defer sealed.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = files[0], files[1], log, files[2:]
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the supervisor of %s: %w", at.name, err)
	}
	return cmd.Process, nil
}

// shimCommand returns the command of a supervisor that has children in machines. Until those execute something else they
// are this binary, and the machine's root could write to what it can see of it: so it is executed from a mount that nobody can
// write to and that is mounted nowhere. The returned file has to stay open until the command has started.
func (d *Driver) shimCommand(verb string, args ...string) (*exec.Cmd, *os.File, error) {
	self, err := d.opts.self()
	if err != nil {
		return nil, nil, err
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, self, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, nil, fmt.Errorf("mount %s: %w", self, err)
	}
	sealed := os.NewFile(uintptr(fd), self)
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make the mount of %s read-only: %w", self, err), sealed.Close())
	}
	// By this process's descriptor: the child's own of that number may be another file by then.
	cmd := exec.Command(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), append([]string{"shim", verb}, args...)...)
	cmd.Args[0] = self
	cmd.Dir = "/"
	cmd.Env = d.opts.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, sealed, nil
}

// StopProcess implements driver.Processes.
func (d *Driver) StopProcess(ctx context.Context, ref driver.ProcessRef, stop driver.Stop) (driver.ProcessStatus, error) {
	sig, err := signalOf(stop.Signal)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	at := d.serviceAt(ref)
	if !isName(at.name) {
		return driver.ProcessStatus{}, fmt.Errorf("%w: process %.80q", driver.ErrNotFound, ref)
	}
	unlock, err := d.keys.lock(ctx, at.name)
	if err != nil {
		return driver.ProcessStatus{}, err
	}
	defer unlock()
	status, err := d.observedService(ctx, at)
	if err != nil || status.State == driver.Exited {
		return status, err
	}
	if err := d.stopService(ctx, at, sig, stop.Grace); err != nil {
		return driver.ProcessStatus{}, err
	}
	return d.observedService(ctx, at)
}

func (d *Driver) stopService(ctx context.Context, at machine, sig unix.Signal, grace time.Duration) error {
	if err := at.setStopping(); err != nil {
		return err
	}
	var s serviceState
	if err := at.read("state.json", &s); err != nil {
		return err
	}
	// To its group: a shell that waits for a program would keep the signal for itself.
	if s.Main.alive() {
		if err := unix.Kill(-s.Main.PID, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal %s: %w", at.name, err)
		}
	}
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := d.awaitEnd(graceful, at); err == nil {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.killService(ctx, at)
}

// killService kills a process with all that it has started, and waits until its supervisor has written that down. One
// that does not within 10 s is killed too.
func (d *Driver) killService(ctx context.Context, at machine) error {
	var r serviceRecord
	if err := at.read("process.json", &r); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if err := r.Group.Kill(); err != nil {
			return err
		}
		leaving, cancel := context.WithTimeout(ctx, time.Second)
		err := d.awaitEnd(leaving, at)
		cancel()
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if time.Now().After(deadline) {
			var s serviceState
			if err := at.read("state.json", &s); err != nil {
				return err
			}
			return errors.Join(s.Supervisor.signal(unix.SIGKILL), d.awaitEnd(ctx, at))
		}
	}
}

// signalOf reads a signal's name.
func signalOf(name string) (unix.Signal, error) {
	if name == "" {
		return unix.SIGTERM, nil
	}
	sig := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if sig == 0 {
		return 0, muster.InvalidField("signal", "%.80q is no signal; give one such as TERM, INT or QUIT", name)
	}
	return sig, nil
}

// RemoveProcess implements driver.Processes.
func (d *Driver) RemoveProcess(ctx context.Context, ref driver.ProcessRef) error {
	at := d.serviceAt(ref)
	if !isName(at.name) {
		return nil
	}
	unlock, err := d.keys.lock(ctx, at.name)
	if err != nil {
		return err
	}
	defer unlock()
	return d.removeService(ctx, at)
}
