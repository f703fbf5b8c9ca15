package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (a *app) nodeCommand() *cobra.Command {
	return group("node", "Nodes: the machines of the cluster",
		a.nodeListCommand(), a.nodeShowCommand(), a.nodeCordonCommand(), a.nodeUncordonCommand(), a.nodeDrainCommand(), a.nodeTopCommand(), a.nodeLabelCommand(), a.nodeRemoveCommand(), a.nodeForgetCommand())
}

func (a *app) nodeListCommand() *cobra.Command {
	which, watch := nodeNarrowing(), false
	c := &cobra.Command{
		Use: "list", Short: "List nodes", Long: "List nodes, in order of their ids." + listLong, Args: exactly(0, "no arguments"),
		Example: "  muster node list --filter status=UNHEALTHY,label.zone=a\n  muster node list --watch",
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			if watch {
				return a.followNodes(c.Context(), filter)
			}
			return a.listNodes(c.Context(), filter)
		},
	}
	which.declare(c.Flags())
	watchFlag(c.Flags(), &watch)
	return c
}

func (a *app) listNodes(ctx context.Context, filter *muster.NodeFilter) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	nodes, err := collect(c.AllNodes(ctx, filter))
	if err != nil {
		return err
	}
	return a.write(nodes, func(w io.Writer) { a.printNodes(w, nodes) })
}

func (a *app) followNodes(ctx context.Context, filter *muster.NodeFilter) error {
	return a.follow(ctx, following{
		table: a.nodeTable().reserve(map[int]string{1: string(muster.Unhealthy)}),
		watch: func(c *client.Client, o client.WatchOptions, each func(client.Event) error) error {
			return c.WatchNodes(ctx, filter, o, each)
		},
		row: func(t *table, e client.Event) {
			if e.Node != nil {
				addNode(t, e.Node, gone(e))
			}
		},
	})
}

func (a *app) printNodes(w io.Writer, nodes []*client.Node) {
	t := a.nodeTable()
	for _, n := range nodes {
		addNode(t, n, "")
	}
	t.print(w)
}

func (a *app) nodeTable() *table {
	t := &table{paint: a.painter(), whole: []int{0, 1, 2}}
	t.add("ID", "STATUS", "ADDR", "INSTANCES", "CPU FREE", "MEMORY FREE", "IMAGES", "LAST SEEN")
	return t
}

// addNode adds a node's row; note follows its status.
func addNode(t *table, n *client.Node, note string) {
	t.add(
		string(n.ID), nodeStatus(n)+note, n.Addr, strconv.Itoa(n.Allocated.Instances),
		fmt.Sprintf("%d%%", n.Free.CPUPercent), fmt.Sprintf("%d MiB", n.Free.MemoryMB),
		strings.Join(n.Images, " "), since(time.Now(), n.LastSeen),
	)
}

// nodeStatus is the status, and whether it is cordoned or drained.
func nodeStatus(n *client.Node) string {
	switch {
	case n.Drain != nil && n.Drain.Done != nil:
		return string(n.Status) + " (drained)"
	case n.Drain != nil:
		return string(n.Status) + " (draining)"
	case !n.Schedulable:
		return string(n.Status) + " (cordoned)"
	}
	return string(n.Status)
}

func since(now time.Time, t *time.Time) string {
	if t == nil {
		return ""
	}
	return ago(now, *t) + " ago"
}

func (a *app) nodeShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show NODE", Short: "Show a node, by id or uid", Args: exactly(1, "a node's id or uid"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withNode(c.Context(), a.printNode, func(ctx context.Context, api *client.Client) (*client.Node, error) {
				return api.Node(ctx, args[0])
			})
		},
	}
}

func (a *app) nodeCordonCommand() *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cordon NODE", Short: "Keep new instances off a node", Args: exactly(1, "a node's id or uid"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withNode(c.Context(), a.printNodeRow, func(ctx context.Context, api *client.Client) (*client.Node, error) {
				return api.CordonNode(ctx, args[0], reason)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for those who look later")
	return c
}

func (a *app) nodeUncordonCommand() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NODE", Short: "Let new instances onto a node again", Args: exactly(1, "a node's id or uid"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withNode(c.Context(), a.printNodeRow, func(ctx context.Context, api *client.Client) (*client.Node, error) {
				return api.UncordonNode(ctx, args[0])
			})
		},
	}
}

func (a *app) nodeRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove NODE", Short: "Take a node out of the registry; its instances are LOST", Args: exactly(1, "a node's id or uid"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withNode(c.Context(), printNodeEnd, func(ctx context.Context, api *client.Client) (*client.Node, error) {
				return api.RemoveNode(ctx, args[0])
			})
		},
	}
}

func (a *app) nodeForgetCommand() *cobra.Command {
	return &cobra.Command{
		Use: "forget NODE", Short: "Clear every trace of a node that is gone", Args: exactly(1, "a node's uid, or its id"),
		Long: `Clear every trace of a node that is gone or was removed: its keys are revoked, its
instances are terminated, and a reinstalled machine can join by its name.`,
		RunE: func(c *cobra.Command, args []string) error {
			return a.withNode(c.Context(), printNodeEnd, func(ctx context.Context, api *client.Client) (*client.Node, error) {
				return api.ForgetNode(ctx, args[0])
			})
		},
	}
}

// withNode makes one call about a node and prints the node that it gives.
func (a *app) withNode(ctx context.Context, print func(io.Writer, *client.Node), call func(context.Context, *client.Client) (*client.Node, error)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	n, err := call(ctx, c)
	if err != nil {
		return err
	}
	return a.write(n, func(w io.Writer) {
		if n == nil {
			_, _ = fmt.Fprintln(w, "there were only keys of it, which are revoked")
			return
		}
		print(w, n)
	})
}

// printNodeRow is for who has changed something about a node and knows it.
func (a *app) printNodeRow(w io.Writer, n *client.Node) { a.printNodes(w, []*client.Node{n}) }

// printNodeEnd is for what is in no list any more.
func printNodeEnd(w io.Writer, n *client.Node) {
	_, _ = fmt.Fprintf(w, "%s: %s\n", n.ID, oneLine(n.StatusReason))
}

func (a *app) printNode(w io.Writer, n *client.Node) {
	shown := []string{"id", string(n.ID), "uid", string(n.UID), "status", string(n.Status), "since", n.StatusSince.Format(time.RFC3339), "reason", n.StatusReason}
	shown = append(shown, evidence(n.UnhealthyBecause, n.StatusReason)...)
	shown = append(
		shown,
		"schedulable", strconv.FormatBool(n.Schedulable), "drain", drainText(n.Drain), "role", string(n.Role), "hostname", n.Hostname,
		"agent", fmt.Sprintf("%s port %d, version %s, incarnation %d", n.Addr, n.Port, n.Version, n.Incarnation),
		"last seen", since(time.Now(), n.LastSeen), "registered", n.RegisteredAt.Format(time.RFC3339),
		"offers", fmt.Sprintf("%d CPUs, %d MiB", n.CPUCount, n.MemoryMB),
		"allocated", fmt.Sprintf("%d%% CPU, %d MiB by %s", n.Allocated.CPUPercent, n.Allocated.MemoryMB, counted(n.Allocated.Instances, "instance")),
		"free", fmt.Sprintf("%d%% CPU, %d MiB", n.Free.CPUPercent, n.Free.MemoryMB),
		"network", n.Subnet, "images", strings.Join(n.Images, ", "), "volumes", volumeTexts(n.Volumes),
		"host paths", strings.Join(n.HostPaths, ", "), "labels", pairs(n.Labels),
		"revision", strconv.FormatInt(n.Revision, 10),
	)
	fields(w, a.painter(), shown...)
}
