package nspawn

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	lastCall  = unix.SYS_RSEQ_SLICE_YIELD // the newest that was looked at
)

func archDeniedCalls() []uint32 {
	return []uint32{
		unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MODIFY_LDT,
		unix.SYS_QUERY_MODULE, unix.SYS_USELIB, unix.SYS__SYSCTL,
	}
}
