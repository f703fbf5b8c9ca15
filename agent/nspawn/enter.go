package nspawn

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var errMachineEnded = errors.New("the instance has ended")

// namespaces are those that a machine has of its own. It has none of users.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP

// inside runs fn on a thread that has entered a machine and has no privilege that the machine's process 1 lacks.
// The thread ends with it; its children are the machine's. The caller keeps away from fn what the machine must not see.
func inside(leader process, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: no other code may run on this thread
		bound, err := enter(leader)
		if err == nil {
			err = confine(bound)
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// enter moves the thread into the namespaces and the root of a machine, and returns what its process 1 may have of
// capabilities.
func enter(leader process) (bound uint64, err error) {
	pidfd, err := leader.open()
	if err != nil {
		return 0, err
	}
	if pidfd < 0 {
		return 0, errMachineEnded
	}
	defer unix.Close(pidfd)
	dir := fmt.Sprintf("/proc/%d/", leader.PID)
	root, err := unix.Open(dir+"root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open its root: %w", err)
	}
	defer unix.Close(root)
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		return 0, err
	}
	if bound, err = boundingSet(status); err != nil {
		return 0, err
	}
	if !leader.alive() { // else the PID may have been another's
		return 0, errMachineEnded
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // threads share their root and working directory
		return 0, fmt.Errorf("take a root of its own: %w", err)
	}
	if err := unix.Setns(pidfd, namespaces); err != nil {
		return 0, fmt.Errorf("enter its namespaces: %w", err)
	}
	if err := errors.Join(unix.Fchdir(root), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return 0, fmt.Errorf("enter its root: %w", err)
	}
	return bound, nil
}

// boundingSet reads which capabilities a process can ever have, from its status.
func boundingSet(status []byte) (uint64, error) {
	for line := range bytes.Lines(status) {
		if value, ok := strings.CutPrefix(string(line), "CapBnd:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		}
	}
	return 0, errors.New("its status has no bounding set")
}

// confine takes from the thread, for good, what the process 1 of a machine lacks.
func confine(bound uint64) error {
	unix.Umask(0o022)
	// Keys are of no namespace: those of the agent's session would be readable inside. Without them there are none to read.
	_, _ = unix.KeyctlJoinSessionKeyring("")
	for capability := range 64 {
		if bound>>capability&1 == 1 {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // the kernel knows no more
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear the ambient capabilities: %w", err)
	}
	if err := dropCapabilities(bound); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid new privileges: %w", err)
	}
	return installFilter()
}

// dropCapabilities leaves only those in a set, and none to be inherited.
func dropCapabilities(bound uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	for i := range data {
		part := uint32(bound >> (32 * i))
		data[i].Permitted &= part
		data[i].Effective &= part
		data[i].Inheritable = 0
	}
	return unix.Capset(&header, &data[0])
}

// stays reports whether the process is there and is not about to end. The process 1 of a machine that was killed
// waits for what was started in the machine from outside to be collected.
func (p process) stays() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil || !p.alive() {
		return false
	}
	fields := strings.Fields(string(text[max(0, bytes.LastIndexByte(text, ')')):])) // its name may have blanks
	const exiting, flagsField = 0x4, 7                                              // PF_EXITING
	if len(fields) <= flagsField {
		return false
	}
	flags, err := strconv.ParseUint(fields[flagsField], 10, 64)
	return err == nil && flags&exiting == 0
}
