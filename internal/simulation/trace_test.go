package simulation_test

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	traceLines = 2000 // the newest that are kept, unless logs are wanted
	maxFaults  = 20   // more of them say nothing new
	endless    = 1000 // so many are a loop that no time passes in
)

// trace is the story of a run: what was done to the cluster, and what was found.
type trace struct {
	mu     sync.Mutex
	began  time.Time
	lines  []string
	all    bool // keep all of them
	cut    int
	faults []string
	found  int
}

func (t *trace) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLocked(fmt.Sprintf(format, args...))
}

func (t *trace) noteLocked(line string) {
	if len(t.lines) >= traceLines && !t.all {
		t.lines = t.lines[traceLines/2:]
		t.cut += traceLines / 2
	}
	t.lines = append(t.lines, fmt.Sprintf("%10s  %s", time.Since(t.began).Round(time.Millisecond), line))
}

// fault notes that something does not hold.
func (t *trace) fault(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := fmt.Sprintf(format, args...)
	t.noteLocked("FAULT: " + line)
	if t.found++; t.found == endless {
		panic(strings.Join(append(t.faults, t.lines[max(len(t.lines)-100, 0):]...), "\n"))
	}
	if len(t.faults) < maxFaults {
		t.faults = append(t.faults, fmt.Sprintf("%s: %s", time.Since(t.began).Round(time.Millisecond), line))
	}
}

func (t *trace) failed() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.faults
}

func (t *trace) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("(%d earlier lines)\n%s", t.cut, strings.Join(t.lines, "\n"))
}

// Write takes a line of a log.
func (t *trace) Write(b []byte) (int, error) {
	t.note("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}
