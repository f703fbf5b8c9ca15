package agent

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

const (
	// diskAge is how old a figure of a disk becomes before it is measured again, and diskRest how many times longer
	// than measuring it took: a large disk is measured less often.
	diskAge, diskRest = 2 * time.Minute, 20
	// diskWalks is how many disks are measured at a time.
	diskWalks = 2
)

// diskFigure is what a disk took when it was measured last.
type diskFigure struct {
	bytes int64
	at    time.Time // zero: never yet
	next  time.Time // when it is measured again
	busy  bool      // it is being measured
}

// measureDisks notes now and then what the disks of the machines that run take, for the beats
// to tell. It returns once nothing is being measured any more.
func (a *Agent) measureDisks(ctx context.Context) error {
	disks, ok := a.o.Driver.(driver.Disks)
	if !ok {
		return nil
	}
	var walks errgroup.Group
	walks.SetLimit(diskWalks)
	for {
		for _, machine := range a.dueDisks(ctx) {
			started := walks.TryGo(func() error {
				a.measureDisk(ctx, disks, machine)
				return nil
			})
			if !started { // the next time
				a.setDisk(machine, func(f *diskFigure) { f.busy = false })
			}
		}
		if !sleep(ctx, a.interval(), nil) {
			return walks.Wait()
		}
	}
}

// dueDisks returns the machines whose disks are to be measured, and notes that they are being so. What does not run
// any more is forgotten.
func (a *Agent) dueDisks(ctx context.Context) (due []string) {
	machines, err := a.o.Driver.List(ctx)
	if err != nil {
		return nil // others say so
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	figures := map[string]diskFigure{}
	for _, m := range machines {
		if m.State != driver.Running {
			continue
		}
		f := a.state.disks[m.Spec.Machine]
		if !f.busy && !now.Before(f.next) {
			f.busy = true
			due = append(due, m.Spec.Machine)
		}
		figures[m.Spec.Machine] = f
	}
	a.state.disks = figures
	return due
}

func (a *Agent) measureDisk(ctx context.Context, disks driver.Disks, machine string) {
	began := time.Now()
	bytes, err := disks.DiskUsage(ctx, machine)
	if err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrNotFound) {
		a.o.Logger.Warn("a disk cannot be measured", "node", a.o.ID, "machine", machine, "err", err)
	}
	a.setDisk(machine, func(f *diskFigure) {
		now := time.Now()
		f.busy, f.next = false, now.Add(max(diskAge, diskRest*now.Sub(began)))
		if err == nil {
			f.bytes, f.at = bytes, now
		}
	})
}

// setDisk changes the figure of a machine that still runs.
func (a *Agent) setDisk(machine string, change func(*diskFigure)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f, ok := a.state.disks[machine]; ok {
		change(&f)
		a.state.disks[machine] = f
	}
}

// addDisksLocked adds to what was measured what the disks took when they were.
func (a *Agent) addDisksLocked(u *muster.UsageInput) {
	if u == nil {
		return
	}
	for k := range u.Machines {
		if f := a.state.disks[u.Machines[k].Machine]; !f.at.IsZero() {
			mb, at := mebibytes(f.bytes), f.at.UTC()
			u.Machines[k].DiskMB, u.Machines[k].DiskAt = &mb, &at
		}
	}
}
