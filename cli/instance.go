package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (a *app) instanceCommand() *cobra.Command {
	return group("instance", "Instances: systemd-nspawn containers on the nodes",
		a.launchCommand(), a.instanceListCommand(), a.instanceShowCommand(),
		a.verbCommand(verb{
			use: "start", short: "Start an instance that is STOPPED or FAILED", goal: running,
			call: (*client.Client).StartInstance,
		}),
		a.verbCommand(verb{
			use: "stop", short: "Stop an instance; it keeps its id and its disk", goal: stopped,
			call: (*client.Client).StopInstance,
		}),
		a.verbCommand(verb{
			use: "restart", short: "Stop an instance and start it again", goal: running,
			call: (*client.Client).RestartInstance,
		}),
		a.verbCommand(verb{
			use: "terminate", also: []string{"remove"}, short: "End an instance for good, disk and all", goal: terminated,
			call: (*client.Client).TerminateInstance,
		}),
		a.instanceLabelCommand(), a.instanceAdoptCommand(), a.logsCommand("INSTANCE"), a.instanceTopCommand(),
	)
}

// verb is a command that asks for one change of one instance.
type verb struct {
	use, short string
	also       []string // further names
	goal       goal
	call       func(*client.Client, context.Context, muster.InstanceID) (*client.Instance, error)
}

func (a *app) verbCommand(v verb) *cobra.Command {
	var w waitFlags
	c := &cobra.Command{
		Use: v.use + " INSTANCE", Aliases: v.also, Short: v.short, Args: exactly(1, "an instance's id, such as i-1"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			instance, err := v.call(api, c.Context(), muster.InstanceID(args[0]))
			if err != nil {
				return err
			}
			return a.finish(c.Context(), api, instance, w.goal(v.goal))
		},
	}
	w.declare(c.Flags())
	return c
}

func (a *app) instanceListCommand() *cobra.Command {
	which, watch := instanceNarrowing(), false
	c := &cobra.Command{
		Use: "list", Short: "List instances", Long: "List instances, oldest first; terminated ones with --status TERMINATED, for an hour." + listLong, Args: exactly(0, "no arguments"),
		Example: "  muster instance list --filter status=RUNNING,label.app=web\n  muster instance list --node web-1 --watch",
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			if len(filter.Status) == 0 {
				filter.Status = slices.DeleteFunc(muster.InstanceStatuses(), func(s muster.InstanceStatus) bool { return s == muster.Terminated })
			}
			if watch {
				return a.followInstances(c.Context(), filter)
			}
			return a.listInstances(c.Context(), filter)
		},
	}
	which.declare(c.Flags())
	watchFlag(c.Flags(), &watch)
	return c
}

// given is nil for an empty text.
func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (a *app) listInstances(ctx context.Context, filter *muster.InstanceFilter) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	instances, err := collect(c.AllInstances(ctx, filter))
	if err != nil {
		return err
	}
	return a.write(instances, func(w io.Writer) { a.printInstances(w, instances) })
}

func (a *app) followInstances(ctx context.Context, filter *muster.InstanceFilter) error {
	return a.follow(ctx, following{
		table: a.instanceTable().reserve(map[int]string{2: string(muster.Terminated) + isGone}),
		watch: func(c *client.Client, o client.WatchOptions, each func(client.Event) error) error {
			return c.WatchInstances(ctx, filter, o, each)
		},
		row: func(t *table, e client.Event) {
			if e.Instance != nil {
				addInstance(t, e.Instance, gone(e))
			}
		},
	})
}

func (a *app) printInstances(w io.Writer, instances []*client.Instance) {
	t := a.instanceTable()
	for _, i := range instances {
		addInstance(t, i, "")
	}
	t.print(w)
}

func (a *app) instanceTable() *table {
	t := &table{paint: a.painter(), whole: []int{0, 2, 5}}
	t.add("ID", "NAME", "STATUS", "TYPE", "NODE", "ADDR", "IMAGE", "AGE", "REASON")
	return t
}

// addInstance adds an instance's row; note follows its status.
func addInstance(t *table, i *client.Instance, note string) {
	t.add(
		string(i.ID), i.Name, string(i.Status)+note, string(i.Type), nodeOf(i), i.Addr,
		i.BaseImage, ago(time.Now(), i.CreatedAt), i.StatusReason,
	)
}

func nodeOf(i *client.Instance) string {
	if i.Node == nil {
		return ""
	}
	return string(i.Node.ID)
}

func (a *app) instanceShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show INSTANCE", Short: "Show an instance", Args: exactly(1, "an instance's id, such as i-1"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			instance, err := api.Instance(c.Context(), muster.InstanceID(args[0]))
			if err != nil {
				return err
			}
			return a.write(instance, func(w io.Writer) { a.printInstance(w, instance) })
		},
	}
}

func (a *app) printInstance(w io.Writer, i *client.Instance) {
	shown := []string{"id", string(i.ID), "name", i.Name, "status", string(i.Status), "reason", i.StatusReason}
	shown = append(shown, evidence(i.UnhealthyBecause, i.StatusReason)...)
	shown = append(
		shown,
		"desired", string(i.Desired), "node", nodeOf(i), "address", i.Addr,
		"type", fmt.Sprintf("%s (%d%% of a core, %d MiB)", i.Type, i.CPULimit, i.MemLimitMB),
		"image", imageText(i.BaseImage, i.ImageDigest), "command", words(i.Command), "environment", strings.Join(i.EnvNames, ", "),
		"labels", pairs(i.Labels), "node selector", pairs(i.NodeSelector),
		"volumes", mountTexts(i.Volumes), "disk limit", diskLimit(i.DiskLimitMB),
		"machine", i.Machine, "generation", strconv.FormatInt(i.Generation, 10), "pid", number(i.PID),
		"exit code", number(i.ExitCode), "created", i.CreatedAt.Format(time.RFC3339), "started", moment(i.StartedAt),
		"ended", moment(i.EndedAt), "waits until", moment(i.QueueDeadline), "drains until", moment(i.DrainUntil), "revision", strconv.FormatInt(i.Revision, 10),
	)
	fields(w, a.painter(), shown...)
	if i.Output != "" {
		_, _ = fmt.Fprintf(w, "output:\n%s\n", strings.TrimRight(safe(i.Output, "\n\t"), "\n"))
	}
}

// words writes a command line so that each word can be told from the next.
func words(command []string) string {
	quoted := make([]string, len(command))
	for i, word := range command {
		quoted[i] = word
		if word == "" || strings.ContainsAny(word, " \t\n\"'\\$`;&|<>*?()") {
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}
