package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/failpoint"
)

// ignoredRemedy is what to do on a host whose systemd takes limits and does not set them.
const ignoredRemedy = "the host's systemd does not enforce limits, as in a container whose cgroup v1 controllers are read-only: " +
	"boot the host with cgroup v2 (kernel option systemd.unified_cgroup_hierarchy=1), or make the controllers below /sys/fs/cgroup writable before systemd starts"

// notice notes what systemd-nspawn tells. Once the machine is set up, and before its payload is executed, it tells the leader.
func (s *supervisor) notice(n notice) error {
	if n.leader != 0 && s.progress.Leader.PID == 0 {
		if err := s.limit(n.leader); err != nil {
			return err
		}
	}
	if !n.ready || s.result.ready {
		return nil
	}
	if s.progress.Leader.PID == 0 {
		return errors.New("systemd-nspawn did not tell the machine's process 1")
	}
	s.result.ready = true
	return s.settle()
}

// limit sets the CPU quota, reads all limits back and asserts that they are those of the leader.
func (s *supervisor) limit(leader int) error {
	s.progress.Leader.PID = leader
	s.progress.Started = time.Now()
	if err := s.record.enforce(); err != nil {
		return err
	}
	s.at(failpoint.SuperviseLimited)
	has, err := s.record.Group.Has(leader)
	if err != nil {
		return err
	}
	now, err := identify(leader)
	if err == nil && !has && now.alive() {
		return fmt.Errorf("process %d is outside of its cgroup: no limit binds", leader)
	}
	s.progress.Leader = process{PID: leader, Start: now.Start} // without a start when it has ended already
	err = s.setProgress(s.progress)
	s.at(failpoint.SuperviseLeader)
	return err
}

// enforce sets the limits that are not set yet and reads all of them back.
func (r record) enforce() error {
	if r.Unit == "" {
		if err := r.Group.LimitCPU(r.Limits); err != nil {
			return err
		}
		return r.Group.Verify(r.Limits)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := limitUnit(ctx, r); err != nil {
		return err
	}
	_ = r.Group.LimitSwap(r.Limits) // systemd does not on v1; whether it holds is read back
	soon, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var unbound error
	err := poll(soon, func() (bool, error) { // systemd answers before it has written the quota
		unbound = r.Group.Verify(r.Limits)
		return unbound == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", unbound, ignoredRemedy)
	}
	return nil
}

// settle looks whether the payload runs. Ready is told before it is executed: an error of that comes later.
func (s *supervisor) settle() error {
	if !s.result.ready || s.result.running {
		return nil
	}
	if !s.record.Boot {
		payload, ok := s.executed()
		if !ok {
			return nil
		}
		s.progress.Payload = payload
		s.payload, _ = payload.open() // when it has ended by now its status is not known as exactly
	}
	s.result.running, s.progress.Running = true, true
	if err := s.setProgress(s.progress); err != nil {
		return err
	}
	s.at(failpoint.SuperviseRunning)
	_, _ = daemon.SdNotify(false, daemon.SdNotifyReady) // the unit, where it is one, has started
	_, err := s.ready.WriteString("R")
	if errors.Is(err, unix.EPIPE) { // the agent has ended: the next one finds the machine
		err = nil
	}
	err = errors.Join(err, s.ready.Close())
	s.at(failpoint.SuperviseTold)
	return err
}

// executed returns the leader's child once that no longer is systemd-nspawn itself.
func (s *supervisor) executed() (process, bool) {
	stub, err := os.Stat(fmt.Sprintf("/proc/%d/exe", s.progress.Nspawn.PID))
	if err != nil {
		return process{}, false
	}
	children, err := s.progress.Leader.children()
	if err != nil {
		return process{}, false
	}
	for _, child := range children {
		now, err := os.Stat(fmt.Sprintf("/proc/%d/exe", child.PID))
		if err == nil && !os.SameFile(stub, now) {
			return child, true
		}
	}
	return process{}, false
}

// terminate asks the payload to stop and reports whether somebody was there to be asked.
func terminate(r record, leader process) (bool, error) {
	if r.Boot {
		const poweroff = unix.Signal(34 + 4) // SIGRTMIN+4
		return leader.alive(), leader.signal(poweroff)
	}
	// Process 1 is a stub that ignores SIGTERM; its children are the payload and its orphans.
	children, err := leader.children()
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	for _, child := range children {
		err = errors.Join(err, child.signal(unix.SIGTERM))
	}
	return len(children) > 0, err
}
