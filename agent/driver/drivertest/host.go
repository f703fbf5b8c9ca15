package drivertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Host is what the machines of a Fake live on. It outlives the Fake, as a host
// outlives its agent.
type Host struct {
	mu       sync.Mutex
	images   []string
	programs map[string]Program
	onLaunch func(context.Context, driver.Spec) error
	machines map[string]*machine
	watchers map[*watcher]struct{}
	launches map[string]int
	usage    map[string]driver.Usage
	volumes  map[string]*Disk
	allowed  map[string]*Disk // host paths
	lastPID  int

	processes       map[driver.ProcessRef]*fakeProcess
	processWatchers map[*watcher]struct{}
	starts          map[driver.ProcessRef]int

	payloads sync.WaitGroup
}

type machine struct {
	status   driver.Status
	process  *Process
	term     func()
	kill     func()
	stopping bool
	launched chan struct{} // closed when Launch is over, either way
	ended    chan struct{} // closed once Exited
}

// NewHost returns a host that has these images; none given: "minimal".
func NewHost(images ...string) *Host {
	if len(images) == 0 {
		images = []string{"minimal"}
	}
	return &Host{
		images:   slices.Sorted(slices.Values(images)),
		programs: builtins(),
		machines: map[string]*machine{},
		watchers: map[*watcher]struct{}{},
		launches: map[string]int{},
		usage:    map[string]driver.Usage{},
		volumes:  map[string]*Disk{},
		allowed:  map[string]*Disk{},
		lastPID:  1000,

		processes:       map[driver.ProcessRef]*fakeProcess{},
		processWatchers: map[*watcher]struct{}{},
		starts:          map[driver.ProcessRef]int{},
	}
}

// SetImages replaces the images.
func (h *Host) SetImages(images ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.images = slices.Sorted(slices.Values(images))
}

// Program makes a command's first word run a function.
func (h *Host) Program(word string, program Program) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.programs[word] = program
}

// OnLaunch has fn called in each launch while the machine is Preparing: it may
// block, and its error is what Launch returns, leaving nothing. Nil ends that.
func (h *Host) OnLaunch(fn func(context.Context, driver.Spec) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onLaunch = fn
}

// Launches returns how often a machine of that name was launched in earnest.
func (h *Host) Launches(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.launches[name]
}

// Exit ends the payload of a running machine as if by itself. An empty reason
// is "exited with status N". It does nothing to one that is not running.
func (h *Host) Exit(name string, code int, reason string) {
	h.mu.Lock()
	m := h.machines[name]
	h.mu.Unlock()
	if m != nil {
		h.end(m, &code, reason)
	}
}

// Restart ends everything, as when the host restarts: all machines are Exited
// with an unknown status.
func (h *Host) Restart() {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.machines))
	h.mu.Unlock()
	for _, m := range all {
		h.end(m, nil, "the host was restarted")
	}
}

// Close ends everything and waits for all programs.
func (h *Host) Close() {
	h.Restart()
	h.payloads.Wait()
}

// Console returns what a machine has printed so far.
func (h *Host) Console(name string) string {
	h.mu.Lock()
	m := h.machines[name]
	h.mu.Unlock()
	if m == nil {
		return ""
	}
	return m.process.Output()
}

// Machines returns the names of all machines, sorted.
func (h *Host) Machines() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.machines))
}

func (h *Host) statusesLocked() []driver.Status {
	all := make([]driver.Status, 0, len(h.machines))
	for _, name := range slices.Sorted(maps.Keys(h.machines)) {
		all = append(all, h.machines[name].status)
	}
	return all
}

// end moves a running machine to Exited; whoever comes first gives the reason.
func (h *Host) end(m *machine, code *int, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.status.State != driver.Running {
		return
	}
	switch {
	case m.stopping:
		reason = "stopped"
	case reason == "":
		reason = fmt.Sprintf("exited with status %d", *code)
	}
	m.kill()
	h.exitLocked(m, code, reason)
	m.status.Output = muster.Storable(m.process.Output(), driver.OutputLimit)
	for w := range h.watchers {
		w.add(m.status.Spec.Machine)
	}
}

func (h *Host) exitLocked(m *machine, code *int, reason string) {
	m.status.State = driver.Exited
	m.status.PID = 0
	m.status.ExitCode = code
	m.status.Reason = reason
	m.status.OOM = strings.Contains(reason, "out of memory")
	m.status.Ended = time.Now()
	close(m.ended)
}
