package nspawn

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/failpoint"
)

// The supervisor's verbs, and the descriptors that it inherits: the standard ones, since those are all that systemd gives a unit.
const (
	verbRun   = "run"   // start the machine
	verbUnit  = "unit"  // take a mount namespace of its own, then as run
	verbAdopt = "adopt" // take over one whose supervisor was killed

	lockFD  = 0
	readyFD = 1
	logFD   = 2
)

// supervisor is the process beside a machine.
type supervisor struct {
	machine
	record   record
	progress progress
	result   result
	cmd      *exec.Cmd // nil when adopted
	payload  int       // pidfd of the payload, -1 when there is none
	ready    *os.File  // to the launching agent
}

// Shim is the hidden command `muster shim VERB DIR`: the supervisor of one machine, or of a process in one. It returns the
// exit status. It expects the lock as standard input and a pipe to the agent as standard output. The hook, nil for
// none, is told the steps of a machine's supervisor.
func Shim(args []string, reached failpoint.Hook) int {
	verbs := []string{verbRun, verbUnit, verbAdopt, verbService, verbServiceAdopt, verbExec, verbInstall}
	if len(args) != 2 || !slices.Contains(verbs, args[0]) {
		fmt.Fprintln(os.Stderr, "shim is for the agent's own use")
		return 2
	}
	if err := shim(args[0], args[1], reached); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func shim(verb, dir string, reached failpoint.Hook) error {
	switch verb {
	case verbUnit:
		return separate(dir)
	case verbService, verbServiceAdopt:
		return attend(verb, dir)
	case verbExec:
		return execute(dir)
	case verbInstall:
		return unpackInside()
	}
	ready, err := takeOver()
	if err != nil {
		return err
	}
	s := &supervisor{machine: machineAt(dir), payload: -1, ready: ready}
	s.reached = reached
	return s.supervise(verb)
}

// separate executes the supervisor again in a mount namespace of its own. PrivateMounts= will not do: systemd
// leaves the host's mounts below its copy of them, and a network namespace's file cannot be removed while it is mounted there.
func separate(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the namespace is the thread's, until it executes
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("take a mount namespace: %w", err)
	}
	return unix.Exec(self, []string{os.Args[0], "shim", verbRun, dir}, os.Environ())
}

// takeOver moves lock and pipe away from where other processes would inherit them. The lock is kept
// until the process ends.
func takeOver() (ready *os.File, err error) {
	if _, err = unix.FcntlInt(lockFD, unix.F_DUPFD_CLOEXEC, logFD+1); err != nil {
		return nil, fmt.Errorf("keep the lock: %w", err)
	}
	fd, err := unix.FcntlInt(readyFD, unix.F_DUPFD_CLOEXEC, logFD+1)
	if err != nil {
		return nil, fmt.Errorf("keep the pipe: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	err = errors.Join(unix.Dup3(int(null.Fd()), lockFD, 0), unix.Dup3(logFD, readyFD, 0))
	return os.NewFile(uintptr(fd), "ready"), err
}

func (s *supervisor) supervise(verb string) (err error) {
	if s.record, err = s.machine.record(); err != nil {
		return err
	}
	if verb == verbAdopt {
		if s.progress, err = s.machine.progress(); err != nil {
			return err
		}
		s.result = result{running: true, ready: true}
		s.payload, _ = s.progress.Payload.open() // when it has ended its status is not known
	}
	if s.progress.Supervisor, err = identify(os.Getpid()); err != nil {
		return err
	}
	s.at(failpoint.SuperviseBegun)
	if err := s.setProgress(s.progress); err != nil {
		return err
	}
	s.at(failpoint.SuperviseNoted)
	if verb == verbAdopt {
		err = s.adopt()
	} else {
		err = s.run()
	}
	if err != nil {
		s.result.failure = err.Error()
	}
	s.at(failpoint.SuperviseEnded)
	err = s.finish(s.record, s.result)
	s.at(failpoint.SuperviseFinished)
	return err
}

// run starts systemd-nspawn and stays until it has ended.
func (s *supervisor) run() error {
	if err := s.mount(s.record); err != nil {
		return err
	}
	if err := s.setResolver(s.record.ResolvConf); err != nil {
		return err
	}
	s.at(failpoint.SuperviseMounted)
	conn, err := net.ListenUnixgram("unixgram", notifySocket())
	if err != nil {
		return fmt.Errorf("listen for systemd-nspawn: %w", err)
	}
	if err := s.start(); err != nil {
		return errors.Join(err, conn.Close())
	}
	s.at(failpoint.SuperviseStarted)
	return s.await(conn, func() { _ = s.cmd.Wait() }) // its status is read from ProcessState
}

// adopt stays until systemd-nspawn, which is no child, has ended.
func (s *supervisor) adopt() error {
	if err := s.record.Supervisors.Join(os.Getpid()); err != nil {
		return err
	}
	return s.await(nil, func() { _ = s.progress.Nspawn.wait() }) // if it cannot be waited for it counts as ended
}

// start runs systemd-nspawn in the machine's group.
func (s *supervisor) start() error {
	console, err := os.OpenFile(s.path("console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer console.Close()
	if text := settings(s.record.Spec.Env); text != "" {
		if err := os.WriteFile(runtimeDir+"/"+s.name+".nspawn", []byte(text), 0o600); err != nil {
			return err
		}
	}
	s.cmd = exec.Command("systemd-nspawn", s.record.arguments(s.path("root"))...)
	s.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notifySocket().Name)
	s.cmd.Stdout, s.cmd.Stderr = console, console
	if err := s.startInGroup(); err != nil {
		return fmt.Errorf("start systemd-nspawn: %w", err)
	}
	s.progress.Nspawn, err = identify(s.cmd.Process.Pid)
	return err
}

// startInGroup starts the command. A child inherits its parent's groups: joining, starting and leaving again spares
// a second process that would join and then execute. In a unit all are in its group already; there this process makes way for
// systemd-nspawn, which moves itself to that group too, to hand controllers down to the payload.
func (s *supervisor) startInGroup() error {
	if s.record.Unit != "" {
		return errors.Join(s.cmd.Start(), s.record.Group.StepAside("supervisor"))
	}
	if err := s.record.Group.Join(os.Getpid()); err != nil {
		return err
	}
	return errors.Join(s.cmd.Start(), s.record.Supervisors.Join(os.Getpid()))
}

// await handles what happens until systemd-nspawn has ended, which wait tells.
func (s *supervisor) await(conn *net.UnixConn, wait func()) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	notices := make(chan notice) // closed at the end
	var group sync.WaitGroup
	if conn == nil {
		group.Go(func() {
			defer close(notices)
			wait()
		})
	} else {
		defer conn.Close()
		group.Go(func() {
			defer close(notices)
			readNotices(conn, notices)
		})
		group.Go(func() {
			wait()
			sayFarewell(conn)
		})
	}
	err := s.loop(signals, notices)
	if err != nil {
		err = errors.Join(err, s.record.Group.Kill())
	}
	for range notices { // it may tell more while it ends
	}
	group.Wait()
	s.conclude()
	return err
}

// conclude finds out how the payload ended.
func (s *supervisor) conclude() {
	if s.cmd != nil {
		status := s.cmd.ProcessState.Sys().(syscall.WaitStatus) //nolint:forcetypeassert // on Linux it is nothing else
		s.result.status = &status
	}
	// systemd-nspawn gives 255 for each signal, and nothing when it is no child.
	if status := exitStatus(s.payload); status != nil && (s.cmd == nil || s.result.status.Exited()) {
		s.result.status = status
	}
}

// loop returns nil when the notices end, or why the machine has to be ended.
func (s *supervisor) loop(signals <-chan os.Signal, notices <-chan notice) error {
	timeout := time.NewTimer(s.record.StartTimeout)
	defer timeout.Stop()
	defer s.keepBound()()
	settle := time.NewTicker(500 * time.Microsecond)
	defer settle.Stop()
	for {
		if s.result.running {
			timeout.Stop()
			settle.Stop()
		}
		var err error
		select {
		case n, ok := <-notices:
			if !ok {
				return nil
			}
			err = s.notice(n)
		case <-settle.C:
			err = s.settle()
		case sig := <-signals:
			if sig == syscall.SIGTERM {
				if hostStops() {
					s.result.reason = hostRestarted
				}
				_, _ = terminate(s.record, s.progress.Leader) // the sender asks again if it matters
			}
		case <-timeout.C:
			err = fmt.Errorf("it did not run within %s", s.record.StartTimeout)
		}
		if err != nil {
			return err
		}
	}
}
