package proc

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Memory is what has to be remembered of a process, so that the policy holds
// over restarts of the agent. It is written beside the process.
type Memory struct {
	Generation int64         `json:"generation"`         // which start of it that somebody asked for
	Artifact   string        `json:"artifact,omitempty"` // as Spec has it
	Restarts   int           `json:"restarts,omitempty"` // since that start, by policy
	Recent     []int64       `json:"recent,omitempty"`   // when those of the policy's window were, in Unix milliseconds
	Pause      time.Duration `json:"pause,omitempty"`    // before the last one
}

// memoryOf reads what was remembered; nothing where that is damaged.
func memoryOf(p *driver.ProcessStatus) (m Memory) {
	if json.Unmarshal([]byte(p.Spec.Note), &m) != nil {
		return Memory{}
	}
	return m
}

// Generation is which start of it, that somebody asked for, a process is of.
func Generation(p driver.ProcessStatus) int64 { return memoryOf(&p).Generation }

// Artifact is what a process is made of, as its Spec had it.
func Artifact(p driver.ProcessStatus) string { return memoryOf(&p).Artifact }

func (m Memory) note() string {
	text, _ := json.Marshal(m) // it has nothing that could fail
	return string(text)
}

// machinePause is how long after the end of its instance a process is started again at the soonest.
const machinePause = time.Second

// Decision is what follows from the end of a process.
type Decision struct {
	Start bool          // it is started again
	Pause time.Duration // so long after its end
	Next  Memory        // with this
	// Failed says that it is given up as failed, and not as having done what it should.
	Failed bool
	Reason string // why it ended, and why it is not started again
}

// Decide says what follows from the end of a process that should run. It is a
// pure function of the policy and of what the driver says.
func Decide(policy muster.RestartPolicy, p driver.ProcessStatus) Decision {
	policy = policy.WithDefaults()
	m := memoryOf(&p)
	if p.Cause != driver.Itself { // it did nothing wrong
		d := Decision{Start: true, Next: m, Reason: p.Reason}
		if p.Cause == driver.Machine { // which may not have been noticed yet
			d.Pause = machinePause
		}
		return d
	}
	failed := p.ExitCode == nil || *p.ExitCode != 0
	reason := withOutput(p)
	if policy.When == muster.RestartNever || policy.When == muster.RestartOnFailure && !failed {
		return Decision{Failed: failed, Reason: reason}
	}
	recent := within(m.Recent, p.Ended.Add(-policy.Window))
	if policy.Attempts >= 0 && len(recent) >= policy.Attempts {
		return Decision{Failed: true, Reason: fmt.Sprintf("given up after %s in %s; the last time it %s", times(len(recent)), policy.Window, reason)}
	}
	next := Memory{Generation: m.Generation, Artifact: m.Artifact, Restarts: m.Restarts + 1, Pause: policy.Backoff}
	if m.Pause > 0 && !ranFor(p, policy.Window) {
		next.Pause = min(2*m.Pause, policy.Longest)
	}
	if policy.Attempts >= 0 {
		next.Recent = append(recent, p.Ended.Add(next.Pause).UnixMilli())
	}
	return Decision{Start: true, Pause: next.Pause, Next: next, Reason: reason}
}

// within returns the moments that are not before one.
func within(moments []int64, from time.Time) []int64 {
	var in []int64
	for _, at := range moments {
		if at >= from.UnixMilli() {
			in = append(in, at)
		}
	}
	return in
}

func ranFor(p driver.ProcessStatus, span time.Duration) bool {
	return !p.Started.IsZero() && p.Ended.Sub(p.Started) >= span
}

func times(n int) string {
	if n == 1 {
		return "1 restart"
	}
	return fmt.Sprintf("%d restarts", n)
}

// maxLines is how many of the last lines a reason has.
const maxLines = 3

// withOutput returns why a process ended, with the last lines that it wrote.
func withOutput(p driver.ProcessStatus) string {
	lines := strings.Split(strings.TrimSpace(p.Output), "\n")
	lines = lines[max(0, len(lines)-maxLines):]
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	text := strings.Join(lines, " | ")
	if text == "" {
		return p.Reason
	}
	const longest = 600 // of what a status's reason may have
	return p.Reason + ": " + muster.Printable(text, longest)
}
