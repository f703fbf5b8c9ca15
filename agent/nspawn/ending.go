package nspawn

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/network"
)

// maxCuts is how often a launch is begun that is cut off each time.
const maxCuts = 3

// What reasons begin with, or are.
const (
	couldNotStart = "could not start: "
	hostRestarted = "the host was restarted" // the agent starts such a machine again
)

// result is what a supervisor knows when systemd-nspawn has ended.
type result struct {
	status  *syscall.WaitStatus // nil: unknown
	running bool                // the payload was seen running
	ready   bool                // systemd-nspawn had set the machine up
	failure string              // why it could not start, when something else than systemd-nspawn says so
	reason  string              // why it ended, when something else than its status says so
	cut     bool                // the launch was cut off
}

// judge puts an ending into words.
func (m machine) judge(res result, oom bool) ending {
	e := ending{OOM: oom, Ended: time.Now()}
	if res.status != nil && res.status.Exited() {
		code := res.status.ExitStatus()
		e.Code = &code
	}
	output, _ := m.output() // no words then
	switch {
	case res.failure != "":
		e.Code, e.Reason = nil, couldNotStart+res.failure
	case res.reason != "":
		e.Reason = res.reason
	case m.stopping():
		e.Reason = "stopped"
	case oom && (e.Code == nil || *e.Code != 0):
		e.Reason = "out of memory"
	case res.status == nil:
		e.Reason = "ended while its supervisor was gone: exit status unknown"
	case res.status.Signaled():
		e.Reason = fmt.Sprintf("killed by signal %d", res.status.Signal())
	case !res.ready:
		e.Code, e.Reason = nil, couldNotStart+lastLine(output)
	case !res.running && *e.Code != 0 && execFailure.MatchString(lastLine(output)):
		e.Code, e.Reason = nil, couldNotStart+execFailure.FindString(lastLine(output))
	default:
		e.Reason = fmt.Sprintf("exited with status %d", *e.Code)
	}
	return e
}

// finish ends what is left of a machine's processes, writes down how it ended, and removes everything
// of it but files. Whoever calls it has the lock.
func (m machine) finish(r record, res result) error {
	killed := r.Group.Kill()
	m.at(failpoint.EndKilled)
	_ = m.bound() // a payload that has no console has nothing to cut
	e := m.judge(res, r.Group.OutOfMemory())
	e.Cut = res.cut && r.Cuts+1 < maxCuts
	written := m.setEnding(e)
	m.at(failpoint.EndNoted)
	return errors.Join(killed, written, m.letGo(r))
}

// letGo releases what a machine that has ended has outside of the state directory, and notes that.
func (m machine) letGo(r record) error {
	if err := m.release(r); err != nil {
		return err
	}
	return m.setReleased()
}

// release removes what a machine has outside of the state directory. It is complete and idempotent.
func (m machine) release(r record) error {
	unmounted := m.unmount(r)
	m.at(failpoint.EndMount)
	errs := []error{unmounted, r.removeGroup()}
	m.at(failpoint.EndGroup)
	if r.Spec.Addr != "" {
		errs = append(errs, network.New(m.state).Delete(m.name))
	}
	m.at(failpoint.EndNetwork)
	return errors.Join(errs...)
}

// removeGroup removes the machine's group. That of a unit is systemd's to remove when its last process,
// which the caller may be, has ended.
func (r record) removeGroup() error {
	if r.Unit != "" {
		if members, err := r.Group.Processes(); err != nil || slices.Contains(members, os.Getpid()) {
			return err
		}
	}
	return r.Group.Remove()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
