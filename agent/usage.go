package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// measure notes now and then what the machines and the host use, for the beats to
// tell. A host or a driver that cannot tell is nothing to fail for.
func (a *Agent) measure(ctx context.Context) error {
	stats, ok := a.o.Driver.(driver.Stats)
	if !ok {
		return nil
	}
	var m meter
	complained := false
	for {
		usage, err := m.read(ctx, stats)
		if err != nil && ctx.Err() == nil && !complained {
			complained = true
			a.o.Logger.Warn("what is used cannot be measured", "node", a.o.ID, "err", err)
		}
		a.mu.Lock()
		a.addDisksLocked(usage)
		a.state.usage = usage
		a.mu.Unlock()
		if !sleep(ctx, max(a.interval()/2, time.Second), nil) {
			return nil
		}
	}
}

// meter makes shares of what grows. Its first reading has nothing to compare with.
type meter struct {
	at       time.Time
	host     time.Duration
	machines map[string]driver.Usage
}

// read returns what was used since the last time; nil the first time.
func (m *meter) read(ctx context.Context, stats driver.Stats) (*muster.UsageInput, error) {
	before := *m
	*m = meter{}
	machines, err := stats.Stats(ctx)
	if err != nil {
		return nil, err
	}
	host, err := usedCPU()
	if err != nil {
		return nil, err
	}
	memory, err := usedMemory()
	if err != nil {
		return nil, err
	}
	*m = meter{at: time.Now(), host: host, machines: machines}
	span := m.at.Sub(before.at)
	if before.at.IsZero() || span <= 0 {
		return nil, nil
	}
	u := &muster.UsageInput{CPUPercent: share(host-before.host, span), MemoryMB: memory, Machines: []muster.MachineUsageInput{}}
	for name, now := range machines {
		if then, ok := before.machines[name]; ok {
			u.Machines = append(u.Machines, machineUsage(name, now, share(now.CPU-then.CPU, span)))
		}
	}
	slices.SortFunc(u.Machines, func(a, b muster.MachineUsageInput) int { return strings.Compare(a.Machine, b.Machine) })
	u.Machines = u.Machines[:min(len(u.Machines), muster.MaxMachineUsages)]
	return u, nil
}

func machineUsage(name string, u driver.Usage, percent float64) muster.MachineUsageInput {
	in := muster.MachineUsageInput{Machine: name, CPUPercent: percent, MemoryMB: mebibytes(u.Memory)}
	if u.MemoryPeak > 0 {
		peak := mebibytes(u.MemoryPeak)
		in.MemoryPeakMB = &peak
	}
	return in
}

// share is in per cent of one core, to a tenth.
func share(used, span time.Duration) float64 {
	tenths := int64(1000 * max(used, 0) / span)
	return float64(tenths) / 10
}

func mebibytes(n int64) int { return int((n + 1<<20 - 1) >> 20) }

// tick is the unit of /proc/stat, the same on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// usedCPU is how long the host's cores have worked since it booted, together.
func usedCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read what the host uses: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	// cpu user nice system idle iowait irq softirq steal; guests are in user and nice.
	const idle, iowait, last = 4, 5, 8
	var used time.Duration
	for i := 1; i < len(fields) && i <= last; i++ {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read what the host uses: %w", err)
		}
		if i != idle && i != iowait {
			used += time.Duration(n) * tick
		}
	}
	return used, nil
}

// usedMemory is what of the host's memory is not available, in MiB.
func usedMemory() (int, error) {
	total, err := memory("MemTotal")
	if err != nil {
		return 0, err
	}
	available, err := memory("MemAvailable")
	return total - available, err
}
