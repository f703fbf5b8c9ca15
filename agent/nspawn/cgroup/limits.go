package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const periodMicros = 100_000

// Limits are what a group may use.
type Limits struct {
	CPUPercent int `json:"cpu"`       // of one core
	MemoryMB   int `json:"memory"`    // MiB, without swap
	Processes  int `json:"processes"` // threads count
}

// setting is one control file of a limit.
type setting struct {
	controller, file, value string
	optional                bool // only where the kernel has it
}

// LimitSpace sets the limits of memory and processes.
func (g Group) LimitSpace(l Limits) error { return g.set(g.space(l)) }

// LimitSwap forbids swap where it has a limit of its own beside that of memory, which on v1 is one of both together.
func (g Group) LimitSwap(l Limits) error {
	return g.set(slices.DeleteFunc(g.space(l), func(s setting) bool { return !s.optional }))
}

// LimitCPU sets the CPU quota.
func (g Group) LimitCPU(l Limits) error { return g.set(g.cpu(l)) }

// Verify reads all limits back and says which one does not hold.
func (g Group) Verify(l Limits) error {
	for _, s := range append(g.space(l), g.cpu(l)...) {
		path := g.path(s)
		got, err := os.ReadFile(path)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read a limit back: %w", err)
		}
		if value := strings.TrimSpace(string(got)); value != s.value {
			return fmt.Errorf("the %s limit does not bind: %s is %q, not %q", s.controller, path, value, s.value)
		}
	}
	return nil
}

func (g Group) space(l Limits) []setting {
	bytes, pids := strconv.Itoa(l.MemoryMB<<20), strconv.Itoa(l.Processes)
	if g.V2 {
		return []setting{
			{"memory", "memory.max", bytes, false},
			{"memory", "memory.swap.max", "0", true},
			{"pids", "pids.max", pids, false},
		}
	}
	return []setting{
		{"memory", "memory.limit_in_bytes", bytes, false},
		{"memory", "memory.memsw.limit_in_bytes", bytes, true},
		{"pids", "pids.max", pids, false},
	}
}

func (g Group) cpu(l Limits) []setting {
	quota, period := strconv.Itoa(l.CPUPercent*(periodMicros/100)), strconv.Itoa(periodMicros)
	if g.V2 {
		return []setting{{"cpu", "cpu.max", quota + " " + period, false}}
	}
	return []setting{
		{"cpu", "cpu.cfs_period_us", period, false},
		{"cpu", "cpu.cfs_quota_us", quota, false},
	}
}

func (g Group) set(settings []setting) error {
	for _, s := range settings {
		err := write(g.path(s), s.value)
		if err != nil && (!s.optional || !errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("set the %s limit: %w", s.controller, err)
		}
	}
	return nil
}

func (g Group) path(s setting) string {
	if g.V2 {
		return filepath.Join(g.Dirs[unified], s.file)
	}
	return filepath.Join(g.Dirs[s.controller], s.file)
}

// OutOfMemory reports whether the kernel killed for memory in the group.
func (g Group) OutOfMemory() bool {
	path := filepath.Join(g.Dirs["memory"], "memory.oom_control")
	if g.V2 {
		path = filepath.Join(g.Dirs[unified], "memory.events")
	}
	return counter(path, "oom_kill") > 0
}

// counter reads one line of a file of names and numbers; 0 when it is not there.
func counter(path, name string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(value)) // the kernel writes numbers
			return n
		}
	}
	return 0
}
