package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what the processes of a group use.
type Usage struct {
	CPU        time.Duration // so far, of those too that have ended
	Memory     int64         // bytes, with what the kernel caches for them
	MemoryPeak int64         // the most that it was; 0: the kernel does not tell
}

// Usage reads what the group's processes use.
func (g Group) Usage() (u Usage, err error) {
	if u.CPU, err = g.usedCPU(); err != nil {
		return u, fmt.Errorf("read the CPU that is used: %w", err)
	}
	dir, current, peak := g.Dirs["memory"], "memory.usage_in_bytes", "memory.max_usage_in_bytes"
	if g.V2 {
		dir, current, peak = g.Dirs[unified], "memory.current", "memory.peak"
	}
	if u.Memory, err = number(filepath.Join(dir, current)); err != nil {
		return u, fmt.Errorf("read the memory that is used: %w", err)
	}
	if u.MemoryPeak, err = number(filepath.Join(dir, peak)); errors.Is(err, os.ErrNotExist) {
		err = nil // before Linux 5.19
	}
	return u, err
}

// usedCPU is in cgroup2 wherever that is mounted, with controllers or without.
func (g Group) usedCPU() (time.Duration, error) {
	if dir, ok := g.Dirs[unified]; ok {
		if text, err := os.ReadFile(filepath.Join(dir, "cpu.stat")); err == nil {
			return usec(string(text))
		}
	}
	n, err := number(filepath.Join(g.Dirs["cpu"], "cpuacct.usage")) // mounted together everywhere
	return time.Duration(n), err
}

func usec(stat string) (time.Duration, error) {
	for line := range strings.Lines(stat) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, errors.New("cpu.stat has no usage_usec")
}

func number(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
