package nspawn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor's verbs, and the descriptors that it inherits.
const (
	verbRun   = "run"   // start the machine
	verbAdopt = "adopt" // take over one whose supervisor was killed

	lockFD  = 3
	readyFD = 4
)

// supervisor is the process beside a machine.
type supervisor struct {
	machine
	record   record
	progress progress
	result   result
	cmd      *exec.Cmd // nil when adopted
	ready    *os.File  // to the launching agent
}

// Shim is the hidden command `muster shim VERB DIR`: the supervisor of one machine. It returns the
// exit status. It expects the machine's lock and a pipe to the agent as descriptors 3 and 4.
func Shim(args []string) int {
	if len(args) != 2 || args[0] != verbRun && args[0] != verbAdopt {
		fmt.Fprintln(os.Stderr, "shim is for the agent's own use")
		return 2
	}
	for _, fd := range []int{lockFD, readyFD} {
		unix.CloseOnExec(fd) // systemd-nspawn must not hold the lock
	}
	s := &supervisor{machine: machineAt(args[1]), ready: os.NewFile(readyFD, "ready")}
	if err := s.supervise(args[0]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
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
	}
	if s.progress.Supervisor, err = identify(os.Getpid()); err != nil {
		return err
	}
	if err := s.setProgress(s.progress); err != nil {
		return err
	}
	if verb == verbAdopt {
		err = s.adopt()
	} else {
		err = s.run()
	}
	if err != nil {
		s.result.failure = err.Error()
	}
	return s.finish(s.record, s.result)
}

// run starts systemd-nspawn and stays until it has ended.
func (s *supervisor) run() error {
	if err := s.mount(s.record); err != nil {
		return err
	}
	conn, err := listenNotify()
	if err != nil {
		return fmt.Errorf("listen for systemd-nspawn: %w", err)
	}
	if err := s.start(); err != nil {
		return errors.Join(err, conn.Close())
	}
	return s.await(conn, func() { _ = s.cmd.Wait() }) // its status is read from ProcessState
}

// adopt stays until systemd-nspawn, which is no child, has ended.
func (s *supervisor) adopt() error {
	if err := s.record.Supervisors.Join(os.Getpid()); err != nil {
		return err
	}
	return s.await(nil, func() { _ = s.progress.Nspawn.wait() }) // if it cannot be waited for it counts as ended
}

// start runs systemd-nspawn in the machine's group. A child inherits its parent's groups: joining, starting and
// leaving again spares a second process that would join and then execute.
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
	s.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+notifySocket())
	s.cmd.Stdout, s.cmd.Stderr = console, console
	if err := s.record.Group.Join(os.Getpid()); err != nil {
		return err
	}
	started := s.cmd.Start()
	if err := s.record.Supervisors.Join(os.Getpid()); err != nil {
		return errors.Join(started, err)
	}
	if started != nil {
		return fmt.Errorf("start systemd-nspawn: %w", started)
	}
	s.progress.Nspawn, err = identify(s.cmd.Process.Pid)
	return err
}

// await handles what happens until systemd-nspawn has ended.
func (s *supervisor) await(conn *net.UnixConn, wait func()) error {
	ctx, ended := context.WithCancel(context.Background())
	defer ended()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	notices := make(chan notice, 16)
	var group sync.WaitGroup
	defer group.Wait()
	if conn != nil {
		group.Go(func() { readNotices(ctx, conn, notices) })
		defer conn.Close()
	}
	group.Go(func() {
		wait()
		ended()
	})
	err := s.loop(ctx, signals, notices)
	if err != nil {
		err = errors.Join(err, s.record.Group.Kill())
	}
	<-ctx.Done()
	if s.cmd != nil {
		status := s.cmd.ProcessState.Sys().(syscall.WaitStatus) //nolint:forcetypeassert // on Linux it is nothing else
		s.result.status = &status
	}
	return err
}

// loop returns nil when ctx is done, or why the machine has to be ended.
func (s *supervisor) loop(ctx context.Context, signals <-chan os.Signal, notices <-chan notice) error {
	timeout := time.NewTimer(s.record.StartTimeout)
	defer timeout.Stop()
	console := time.NewTimer(0)
	defer console.Stop()
	settle := time.NewTicker(500 * time.Microsecond)
	defer settle.Stop()
	for {
		if s.result.running {
			timeout.Stop()
			settle.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case n := <-notices:
			if err := s.notice(n); err != nil {
				return err
			}
		case <-settle.C:
			if err := s.settle(); err != nil {
				return err
			}
		case sig := <-signals:
			if sig == syscall.SIGTERM {
				_, _ = terminate(s.record, s.progress.Leader) // the sender asks again if it matters
			}
		case <-timeout.C:
			return fmt.Errorf("it did not run within %s", s.record.StartTimeout)
		case <-console.C:
			console.Reset(s.rotate())
		}
	}
}

// rotate bounds the console log and returns when to look again: soon while it grows fast.
func (s *supervisor) rotate() time.Duration {
	size, err := s.bound()
	if err == nil && size > consoleKeep {
		return 50 * time.Millisecond
	}
	return time.Second
}
