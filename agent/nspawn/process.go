package nspawn

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is a process that its start time tells from a later one of the same PID.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since the host's boot
}

// identify returns the process that has a PID now.
func identify(pid int) (process, error) {
	start, _, err := stat(pid)
	return process{PID: pid, Start: start}, err
}

// alive reports whether the process is there and has not ended; a zombie has.
func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	start, state, err := stat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

// signal sends a signal; to one that has ended it is no error.
func (p process) signal(sig unix.Signal) error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", p.PID, err)
	}
	return nil
}

// open returns a pidfd, -1 when the process has ended.
func (p process) open() (int, error) {
	if p.PID == 0 {
		return -1, nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	if !p.alive() { // asked once the pidfd holds it: the PID cannot be reused between
		unix.Close(fd)
		return -1, nil
	}
	return fd, nil
}

// wait returns when the process has ended.
func (p process) wait() error {
	fd, err := p.open()
	if err != nil || fd < 0 {
		return err
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// exitStatus returns how the process of a pidfd ended, once its parent has collected it; nil when the kernel does
// not tell: that needs Linux 6.15.
func exitStatus(fd int) *syscall.WaitStatus {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if fd < 0 || unix.IoctlPidfdInfo(fd, &info) != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return nil
	}
	status := syscall.WaitStatus(info.Exit_code)
	return &status
}

// children returns the processes whose parent this one is.
func (p process) children() ([]process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.PID, p.PID))
	if err != nil {
		return nil, err
	}
	var all []process
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		if child, err := identify(pid); err == nil { // else it has ended meanwhile
			all = append(all, child)
		}
	}
	return all, nil
}

// stat reads a process's start time and state.
func stat(pid int) (start uint64, state byte, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The command's name may have blanks and parentheses; what follows the last one has not.
	_, rest, _ := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" "))
	fields := strings.Fields(string(rest))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("process %d: %q is no status", pid, text)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}
