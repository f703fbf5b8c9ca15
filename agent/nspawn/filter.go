package nspawn

import (
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The offsets of what a filter sees, in struct seccomp_data; arguments have their low half first on what muster runs on.
const (
	callNumber   = 0
	callArch     = 4
	callArgument = 16
)

// deniedCalls are system calls that reach beyond a machine, since what they are about has no namespace, and that systemd-nspawn
// keeps from the machine too.
func deniedCalls() []uint32 {
	return append([]uint32{
		unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX,
		unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK, unix.SYS_FINIT_MODULE, unix.SYS_INIT_MODULE,
		unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT,
		unix.SYS_PERF_EVENT_OPEN, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_REQUEST_KEY, unix.SYS_SETTIMEOFDAY,
		unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_SYSLOG,
	}, archDeniedCalls()...)
}

// filter is the system-call filter of everything that is started in a machine: nothing of another architecture, nothing newer than
// muster knows, no denied call, no audit socket.
func filter() []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	refuse := func(errno unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
	}
	code := []unix.SockFilter{
		load(callArch),
		jump(unix.BPF_JEQ, auditArch, 1, 0),
		refuse(unix.ENOSYS),
		load(callNumber),
		jump(unix.BPF_JGT, lastCall, 0, 1), // of x32 too: those have a high bit
		refuse(unix.ENOSYS),
	}
	for _, call := range deniedCalls() {
		code = append(code, jump(unix.BPF_JEQ, call, 0, 1), refuse(unix.EPERM))
	}
	return append(code,
		jump(unix.BPF_JEQ, unix.SYS_SOCKET, 0, 5),
		load(callArgument),
		jump(unix.BPF_JEQ, unix.AF_NETLINK, 0, 3),
		load(callArgument+2*8),
		jump(unix.BPF_JEQ, unix.NETLINK_AUDIT, 0, 1),
		refuse(unix.EAFNOSUPPORT),
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	)
}

// installFilter filters the thread's system calls, and those of its children, for good.
func installFilter() error {
	code := filter()
	if len(code) > math.MaxUint16 {
		return fmt.Errorf("a filter of %d instructions", len(code))
	}
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
