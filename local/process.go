package local

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

// identify notes in s which process this is.
func (s *Server) identify() (err error) {
	s.PID = os.Getpid()
	if s.Started, err = startOf(s.PID); err != nil {
		return err
	}
	s.Network, err = networkID()
	return err
}

// reachable reports whether s is in the network namespace of this process.
func (s *Server) reachable() bool {
	network, err := networkID()
	return err == nil && network == s.Network
}

// lives reports whether the process that s names still runs, in whichever network
// namespace, and belongs to one of the owners.
func (s *Server) lives(owners ...uint32) bool {
	started, err := startOf(s.PID)
	if err != nil || started != s.Started {
		return false
	}
	info, err := os.Stat(processDir(s.PID))
	return err == nil && ownedBy(info, owners)
}

func processDir(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// startOf is when a process started, in ticks since the boot.
func startOf(pid int) (uint64, error) {
	text, err := os.ReadFile(processDir(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The name of the program is in brackets and may have anything in it, brackets too.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	const start = 19 // counted from the field behind the name
	if len(fields) <= start {
		return 0, fmt.Errorf("process %d: its state cannot be read", pid)
	}
	return strconv.ParseUint(string(fields[start]), 10, 64)
}

func networkID() (string, error) { return os.Readlink("/proc/self/ns/net") }

func ownedBy(info os.FileInfo, owners []uint32) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	for _, owner := range owners {
		if stat.Uid == owner {
			return true
		}
	}
	return false
}
