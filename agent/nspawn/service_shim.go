package nspawn

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// The verbs of a process's supervisor, and the descriptors that it inherits beside those of a machine's.
const (
	verbService      = "service"       // start the process
	verbServiceAdopt = "service-adopt" // take over one whose supervisor was killed

	orderFD = 3
)

// attendant is the process beside a process of a machine.
type attendant struct {
	machine // its place
	record  serviceRecord
	state   serviceState
}

// serviceState is what the supervisor writes down while the process lives.
type serviceState struct {
	Supervisor process   `json:"supervisor"`
	Main       process   `json:"main"`
	Started    time.Time `json:"started"`
}

// attend is the supervisor of one process: it starts or adopts it, bounds its log, and writes down how it ended.
func attend(verb, dir string) error {
	ready, err := takeOver()
	if err != nil {
		return err
	}
	defer ready.Close()
	swallowed := make(chan os.Signal, 1) // what ends sessions and services: its process decides when it ends
	signal.Notify(swallowed, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	a := &attendant{machine: machineAt(dir)}
	if err := a.read("process.json", &a.record); err != nil {
		return err
	}
	if verb == verbServiceAdopt {
		return a.adopt()
	}
	if err := a.note(); err != nil {
		return err
	}
	return a.run(ready)
}

func (a *attendant) run(ready *os.File) error {
	cmd, err := a.start()
	if err != nil {
		return a.finish(nil, err)
	}
	a.state.Main, err = identify(cmd.Process.Pid)
	a.state.Started = time.Now()
	if err == nil {
		err = a.note()
	}
	if err != nil {
		return errors.Join(err, a.finish(nil, err))
	}
	_, _ = ready.WriteString("R") // nobody may listen any more: the next agent finds it
	_ = ready.Close()
	stop := a.keepBound()
	_ = cmd.Wait() // its status is read from ProcessState
	stop()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus) //nolint:forcetypeassert // on Linux it is nothing else
	return a.finish(&status, nil)
}

// note writes down who runs.
func (a *attendant) note() (err error) {
	if a.state.Supervisor, err = identify(os.Getpid()); err != nil {
		return err
	}
	return a.replace("state.json", a.state)
}

// start starts the process with the log as its output.
func (a *attendant) start() (*exec.Cmd, error) {
	given := os.NewFile(orderFD, "order")
	o, err := readOrder(given)
	if err = errors.Join(err, given.Close()); err != nil {
		return nil, fmt.Errorf("read what to start: %w", err)
	}
	if err := portIsFree(a.record.Leader, a.record.Spec.Port); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(a.path("console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull) // the host's: the machine's may be anything
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return o.start(a.record.Leader, a.record.Group, a.record.Aside, func() (*exec.Cmd, error) {
		return &exec.Cmd{Stdin: null, Stdout: log, Stderr: log}, nil
	})
}

// adopt stays until the process, which is no child, has ended.
func (a *attendant) adopt() error {
	if err := a.read("state.json", &a.state); err != nil {
		return err
	}
	if err := errors.Join(a.record.Aside.Join(os.Getpid()), a.note()); err != nil {
		return err
	}
	fd, err := a.state.Main.open()
	if err != nil {
		return err
	}
	if fd < 0 { // it has ended meanwhile
		return a.finish(nil, nil)
	}
	defer unix.Close(fd)
	stop := a.keepBound()
	_ = a.state.Main.wait() // if it cannot be waited for it counts as ended
	stop()
	return a.finish(collected(fd), nil)
}

// collected is exitStatus of a process that has ended and that the host's process 1 has yet to collect.
func collected(fd int) *syscall.WaitStatus {
	for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if status := exitStatus(fd); status != nil || time.Now().After(deadline) {
			return status
		}
	}
}

// finish kills what the process has left and writes down how it ended.
func (a *attendant) finish(status *syscall.WaitStatus, failure error) error {
	return finishService(a.machine, a.record, serviceEnd{status: status, failure: failure})
}

// serviceEnd is what is known of a process that has ended.
type serviceEnd struct {
	status    *syscall.WaitStatus // nil: unknown
	failure   error               // why it could not start
	restarted bool                // the host was
}

// serviceEnding is how a process ended.
type serviceEnding struct {
	ending
	Cause driver.Cause `json:"cause"`
}

// finishService ends what is left of a process and writes down how it ended. Whoever calls it has the lock.
func finishService(at machine, r serviceRecord, end serviceEnd) error {
	killed := r.Group.Kill()
	_ = at.bound() // one that could not start has no log
	e := at.judgeService(r, end)
	return errors.Join(killed, r.Group.Remove(), at.write("exit.json", e))
}

// machineEnded reports whether the process ended because its machine did. What kills a machine kills both at a
// time, so that one that was killed looks twice.
func (r serviceRecord) machineEnded(status *syscall.WaitStatus) bool {
	killed := status != nil && status.Signaled() && status.Signal() == syscall.SIGKILL
	for deadline := time.Now().Add(300 * time.Millisecond); r.Leader.stays(); time.Sleep(5 * time.Millisecond) {
		if !killed || time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// judgeService puts an ending into words. It reads the group, which has to be there still.
func (m machine) judgeService(r serviceRecord, end serviceEnd) serviceEnding {
	e := serviceEnding{ending: ending{OOM: r.Group.OutOfMemory(), Ended: time.Now()}}
	if end.status != nil && end.status.Exited() {
		code := end.status.ExitStatus()
		e.Code = &code
	}
	switch {
	case end.restarted:
		e.Reason, e.Cause = hostRestarted, driver.Machine
	case m.stopping():
		e.Reason, e.Cause = "stopped", driver.Stopped
	case r.machineEnded(end.status):
		e.Reason, e.Cause = "ended with its instance", driver.Machine
	case end.failure != nil:
		e.Code, e.Reason = nil, muster.Printable(couldNotStart+end.failure.Error(), muster.MaxReasonBytes)
	case e.OOM && (e.Code == nil || *e.Code != 0):
		e.Reason = "out of memory"
	case end.status == nil:
		e.Reason = "ended while its supervisor was gone: exit status unknown"
	case end.status.Signaled():
		e.Reason = fmt.Sprintf("killed by signal %d", end.status.Signal())
	default:
		e.Reason = fmt.Sprintf("exited with status %d", *e.Code)
	}
	return e
}
