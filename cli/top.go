package cli

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const topLong = `What is used, the most CPU first. On a terminal it is shown again and again until
Ctrl-C, elsewhere once. CPU is in per cent of one core over the last few seconds; agents
tell it with their beats. What an instance's own disk takes, its volumes apart, is measured
every few minutes, a large disk less often.`

// topFlags are what both kinds of `top` can be told.
type topFlags struct {
	once     bool
	interval time.Duration
}

func (f *topFlags) declare(c *cobra.Command) {
	c.Flags().BoolVar(&f.once, "once", false, "show it once on a terminal too")
	c.Flags().DurationVar(&f.interval, "interval", 5*time.Second, "how often it is shown")
}

func (a *app) instanceTopCommand() *cobra.Command {
	var flags topFlags
	var node string
	c := &cobra.Command{
		Use: "top", Short: "Show what instances use", Long: topLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			filter := &muster.InstanceFilter{NodeID: given(node), Status: []muster.InstanceStatus{muster.Running, muster.Stopping}}
			return a.top(c.Context(), flags, func(ctx context.Context, api *client.Client) (any, func(io.Writer), error) {
				usages, err := collect(api.InstanceUsages(ctx, filter))
				slices.SortStableFunc(usages, func(a, b *client.InstanceUsage) int { return cmp.Compare(busy(b.Usage), busy(a.Usage)) })
				return usages, func(w io.Writer) { a.printInstanceUsages(w, usages) }, err
			})
		},
	}
	flags.declare(c)
	c.Flags().StringVar(&node, "node", "", "only on this `NODE`, by id or uid")
	return c
}

func (a *app) nodeTopCommand() *cobra.Command {
	var flags topFlags
	c := &cobra.Command{
		Use: "top", Short: "Show what nodes use", Long: topLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			return a.top(c.Context(), flags, func(ctx context.Context, api *client.Client) (any, func(io.Writer), error) {
				usages, err := collect(api.NodeUsages(ctx, nil))
				slices.SortStableFunc(usages, func(a, b *client.NodeUsage) int { return cmp.Compare(busy(b.Usage), busy(a.Usage)) })
				return usages, func(w io.Writer) { a.printNodeUsages(w, usages) }, err
			})
		},
	}
	flags.declare(c)
	return c
}

// busy is what is sorted by; what is not known comes last.
func busy(u *muster.Usage) float64 {
	if u == nil {
		return -1
	}
	return u.CPUPercent
}

// look reads what is used, and says how it is printed.
type look func(context.Context, *client.Client) (any, func(io.Writer), error)

// top shows what look sees: once, or on a terminal again and again.
func (a *app) top(ctx context.Context, flags topFlags, look look) error {
	if flags.interval <= 0 {
		return usageError("--interval %s is no time to wait; give one such as 5s", flags.interval)
	}
	api, err := a.connect()
	if err != nil {
		return err
	}
	again := a.format == formatTable && !flags.once && isTerminal(a.std.Out)
	ticks := time.NewTicker(flags.interval)
	defer ticks.Stop()
	for {
		value, print, err := look(ctx, api)
		switch {
		case again && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !again:
			return a.write(value, print)
		}
		// Written as one, from the top of a screen that is cleared: nothing flickers.
		var screen bytes.Buffer
		screen.WriteString("\x1b[H\x1b[2J")
		print(&screen)
		if _, err := a.std.Out.Write(screen.Bytes()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

func (a *app) printInstanceUsages(w io.Writer, usages []*client.InstanceUsage) {
	t := &table{paint: a.painter()}
	t.add("ID", "NAME", "NODE", "CPU", "OF", "MEMORY", "PEAK", "OF", "DISK", "MEASURED", "OF")
	for _, u := range usages {
		node := ""
		if u.Node != nil {
			node = string(u.Node.ID)
		}
		cpu, memory, peak := used(u.Usage)
		disk, measured := usedDisk(u.Usage)
		t.add(string(u.ID), u.Name, node, cpu, fmt.Sprintf("%d%%", u.CPULimit), memory, peak, fmt.Sprintf("%d MiB", u.MemLimitMB),
			disk, measured, diskLimit(u.DiskLimitMB))
	}
	t.print(w)
}

func (a *app) printNodeUsages(w io.Writer, usages []*client.NodeUsage) {
	t := &table{paint: a.painter()}
	t.add("ID", "STATUS", "INSTANCES", "CPU", "PROMISED", "OF", "MEMORY", "PROMISED", "OF")
	for _, u := range usages {
		cpu, memory, _ := used(u.Usage)
		t.add(
			string(u.ID), string(u.Status), strconv.Itoa(u.Allocated.Instances),
			cpu, fmt.Sprintf("%d%%", u.Allocated.CPUPercent), fmt.Sprintf("%d%%", 100*u.CPUCount),
			memory, fmt.Sprintf("%d MiB", u.Allocated.MemoryMB), fmt.Sprintf("%d MiB", u.MemoryMB),
		)
	}
	t.print(w)
}

// usedDisk writes what the disk took when it was measured, and how long ago that was.
func usedDisk(u *muster.Usage) (disk, measured string) {
	if u == nil || u.DiskMB == nil || u.DiskAt == nil {
		return "", ""
	}
	return fmt.Sprintf("%d MiB", *u.DiskMB), since(time.Now(), u.DiskAt)
}

// used writes what is used; empty what is not known.
func used(u *muster.Usage) (cpu, memory, peak string) {
	if u == nil {
		return "", "", ""
	}
	if u.MemoryPeakMB != nil {
		peak = fmt.Sprintf("%d MiB", *u.MemoryPeakMB)
	}
	return fmt.Sprintf("%.1f%%", u.CPUPercent), fmt.Sprintf("%d MiB", u.MemoryMB), peak
}
