package proc_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/proc"
)

// ended is a process that ended by itself a minute after its start, with a memory.
func ended(code *int, m proc.Memory) driver.ProcessStatus {
	note, _ := json.Marshal(m)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return driver.ProcessStatus{
		Spec: driver.ProcessSpec{Note: string(note)}, State: driver.Exited, ExitCode: code, Reason: "exited with status 1",
		Output: "one\ntwo\nthree\nfour\n", Started: at.Add(-time.Minute), Ended: at,
	}
}

func TestDecide(t *testing.T) {
	zero, one := 0, 1
	const last = "exited with status 1: two | three | four"
	at := ended(nil, proc.Memory{}).Ended
	ago := func(d time.Duration) int64 { return at.Add(-d).UnixMilli() }
	for name, c := range map[string]struct {
		policy muster.RestartPolicy
		p      driver.ProcessStatus
		start  bool
		pause  time.Duration
		failed bool
		reason string
	}{
		"always, with success":          {muster.RestartPolicy{When: muster.RestartAlways}, ended(&zero, proc.Memory{}), true, time.Second, false, last},
		"always, with failure":          {muster.RestartPolicy{When: muster.RestartAlways}, ended(&one, proc.Memory{}), true, time.Second, false, last},
		"on failure, with success":      {muster.RestartPolicy{When: muster.RestartOnFailure}, ended(&zero, proc.Memory{}), false, 0, false, last},
		"on failure, with failure":      {muster.RestartPolicy{When: muster.RestartOnFailure}, ended(&one, proc.Memory{}), true, time.Second, false, last},
		"on failure, by a signal":       {muster.RestartPolicy{When: muster.RestartOnFailure}, ended(nil, proc.Memory{}), true, time.Second, false, last},
		"never, with success":           {muster.RestartPolicy{When: muster.RestartNever}, ended(&zero, proc.Memory{}), false, 0, false, last},
		"never, with failure":           {muster.RestartPolicy{When: muster.RestartNever}, ended(&one, proc.Memory{}), false, 0, true, last},
		"by default, with failure":      {muster.RestartPolicy{}, ended(&one, proc.Memory{}), true, time.Second, false, last},
		"the pause doubles":             {muster.RestartPolicy{}, ended(&one, proc.Memory{Pause: 8 * time.Second}), true, 16 * time.Second, false, last},
		"to the longest":                {muster.RestartPolicy{}, ended(&one, proc.Memory{Pause: 50 * time.Second}), true, time.Minute, false, last},
		"it ran long enough":            {muster.RestartPolicy{Window: time.Minute}, ended(&one, proc.Memory{Pause: 50 * time.Second}), true, time.Second, false, last},
		"too often":                     {muster.RestartPolicy{Attempts: 2}, ended(&one, proc.Memory{Recent: []int64{ago(9 * time.Minute), ago(time.Minute)}}), false, 0, true, "given up after 2 restarts in 10m0s; the last time it " + last},
		"too often, but not lately":     {muster.RestartPolicy{Attempts: 2}, ended(&one, proc.Memory{Recent: []int64{ago(11 * time.Minute), ago(time.Minute)}}), true, time.Second, false, last},
		"without end":                   {muster.RestartPolicy{Attempts: -1}, ended(&one, proc.Memory{Restarts: 99, Pause: time.Minute}), true, time.Minute, false, last},
		"a memory that is damaged":      {muster.RestartPolicy{}, driver.ProcessStatus{Spec: driver.ProcessSpec{Note: "{"}, Reason: "r", Ended: at}, true, time.Second, false, "r"},
		"with its machine":              {muster.RestartPolicy{When: muster.RestartNever}, driver.ProcessStatus{Cause: driver.Machine, Reason: "ended with its instance", Ended: at}, true, time.Second, false, "ended with its instance"},
		"stopped, and now wanted again": {muster.RestartPolicy{When: muster.RestartNever}, driver.ProcessStatus{Cause: driver.Stopped, Reason: "stopped", Ended: at}, true, 0, false, "stopped"},
	} {
		got := proc.Decide(c.policy, c.p)
		if got.Start != c.start || got.Pause != c.pause || got.Failed != c.failed || got.Reason != c.reason {
			t.Errorf("%s: %+v, want start %v after %s, failed %v, %q", name, got, c.start, c.pause, c.failed, c.reason)
		}
	}
}

// TestDecide_NeverMoreThanThePolicyAllows lets a process end again and again, and counts.
func TestDecide_NeverMoreThanThePolicyAllows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := muster.RestartPolicy{
			When:     muster.RestartAlways,
			Backoff:  time.Duration(rapid.IntRange(1, 5000).Draw(t, "backoff")) * time.Millisecond,
			Attempts: rapid.IntRange(1, 8).Draw(t, "attempts"),
			Window:   time.Duration(rapid.IntRange(1, 120).Draw(t, "window")) * time.Second,
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		var starts []time.Time
		m := proc.Memory{}
		for range rapid.IntRange(1, 60).Draw(t, "ends") {
			p := ended(nil, m)
			p.Started, p.Ended = now, now.Add(time.Duration(rapid.IntRange(0, 30_000).Draw(t, "ran"))*time.Millisecond)
			d := proc.Decide(policy, p)
			if !d.Start {
				if !d.Failed || !strings.HasPrefix(d.Reason, "given up after ") {
					t.Fatalf("given up as %+v", d)
				}
				return
			}
			if d.Pause < policy.Backoff || d.Pause > max(time.Minute, policy.Backoff) {
				t.Fatalf("a pause of %s with %+v", d.Pause, policy)
			}
			now = p.Ended.Add(d.Pause)
			starts = append(starts, now)
			inWindow := 0
			for _, at := range starts {
				if !at.Before(now.Add(-policy.Window)) {
					inWindow++
				}
			}
			// A pause may reach over the window's end, and what was before it counts no longer.
			if inWindow > policy.Attempts+1 {
				t.Fatalf("%d starts within %s, %d allowed", inWindow, policy.Window, policy.Attempts)
			}
			if m = d.Next; m.Restarts != len(starts) || len(m.Recent) > policy.Attempts {
				t.Fatalf("remembered %+v after %d restarts", m, len(starts))
			}
		}
	})
}
