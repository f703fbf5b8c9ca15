package cli

import (
	"context"
	"io"
	"iter"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (a *app) volumeCommand() *cobra.Command {
	return group("volume", "Volumes: directories on nodes that outlive instances", a.volumeListCommand(), a.volumeRemoveCommand())
}

func (a *app) volumeListCommand() *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "list", Short: "List volumes", Args: exactly(0, "no arguments"),
		Long: "List volumes in order of their names, with the instances that use them. A volume is made by the first instance that is launched with it.",
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			volumes, err := collect(api.AllVolumes(c.Context(), given(node)))
			if err != nil {
				return err
			}
			return a.write(volumes, func(w io.Writer) { a.printVolumes(w, volumes) })
		},
	}
	c.Flags().StringVar(&node, "node", "", "only on this `NODE`, by id or uid")
	return c
}

const volumeRemoveLong = `Remove a volume with all that is in it. It is refused while an instance uses it, also
one that is stopped. The node deletes it as soon as it hears of it; until then the
volume is listed as removing.`

func (a *app) volumeRemoveCommand() *cobra.Command {
	var node string
	c := &cobra.Command{
		Use: "remove VOLUME", Short: "Remove a volume with all that is in it", Long: volumeRemoveLong, Args: exactly(1, "the name of a volume"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			removed, err := api.RemoveVolume(c.Context(), args[0], given(node))
			if err != nil {
				return err
			}
			return a.write(removed, func(w io.Writer) { a.printVolumes(w, []*client.Volume{removed}) })
		},
	}
	c.Flags().StringVar(&node, "node", "", "the one on this `NODE`, by id or uid, if several have one of that name")
	return c
}

func (a *app) printVolumes(w io.Writer, volumes []*client.Volume) {
	t := &table{paint: a.painter(), whole: []int{0}}
	t.add("NAME", "NODE", "STATE", "INSTANCES")
	for _, v := range volumes {
		node, state := "(gone)", "there"
		if v.Node != nil {
			node = string(v.Node.ID)
		}
		if v.Removing {
			state = "removing"
		}
		users := make([]string, len(v.Instances))
		for i, user := range v.Instances {
			users[i] = string(user.ID)
		}
		t.add(v.Name, node, state, strings.Join(users, " "))
	}
	t.print(w)
}

// volumeNames offers the volumes that there are.
func (a *app) volumeNames(ctx context.Context, _ *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.Volume, error] {
		return api.AllVolumes(ctx, nil)
	}, func(v *client.Volume) cobra.Completion { return v.Name })
}

// volumeMounts reads NAME:/path and /host/path:/path, either with :ro or :rw behind.
func volumeMounts(list []string) ([]muster.VolumeMount, error) {
	var mounts []muster.VolumeMount
	for _, entry := range list {
		source, rest, _ := strings.Cut(entry, ":")
		inside, mode, hasMode := strings.Cut(rest, ":")
		if source == "" || inside == "" || hasMode && mode != "ro" && mode != "rw" {
			return nil, usageError("--volume %s is not NAME:/PATH or /HOST/PATH:/PATH, with :ro behind it or not", quote(entry))
		}
		m := muster.VolumeMount{Path: inside, ReadOnly: mode == "ro"}
		if path.IsAbs(source) {
			m.HostPath = source
		} else {
			m.Name = source
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// mountText is a mount as --volume takes it.
func mountText(m muster.VolumeMount) string {
	text := m.Name + m.HostPath + ":" + m.Path
	if m.ReadOnly {
		text += ":ro"
	}
	return text
}

func mountTexts(mounts []muster.VolumeMount) string {
	texts := make([]string, len(mounts))
	for i, m := range mounts {
		texts[i] = mountText(m)
	}
	return strings.Join(texts, ", ")
}

// volumeTexts names a node's volumes.
func volumeTexts(volumes []client.VolumeState) string {
	names := make([]string, len(volumes))
	for i, v := range volumes {
		names[i] = v.Name
		if v.Removing {
			names[i] += " (removing)"
		}
	}
	return strings.Join(names, ", ")
}

// diskLimit is how much an instance may write; empty: there is no limit.
func diskLimit(mb int) string {
	if mb == 0 {
		return ""
	}
	return strconv.Itoa(mb) + " MiB"
}

// cleanHostPaths checks what --allow-host-path was given.
func cleanHostPaths(list []string) ([]string, error) {
	var paths []string
	for _, p := range list {
		p = path.Clean(p)
		if err := muster.CheckPath("--allow-host-path", p); err != nil {
			return nil, usageError("%w", err)
		}
		paths = append(paths, p)
	}
	return paths, nil
}
