package scheduler

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
)

// Mounts are what an instance needs of its node's disks.
type Mounts struct {
	Volumes   []string // by name
	HostPaths []string // that the node has to allow
	// DiskLimited says that the node has to be able to limit its disk.
	DiskLimited bool
	// Homes are the nodes that have a volume; none: it is made where the instance goes.
	Homes map[string][]*muster.Node
}

// refuse says why a node cannot give the mounts, and "" when it can. A volume is one
// thing in the whole cluster: it is never made a second time. Where there are several all
// the same, only the node that was asked for is taken.
func (m Mounts) refuse(n *muster.Node, pinned bool) string {
	for _, name := range m.Volumes {
		homes := m.Homes[name]
		here, names := false, make([]string, len(homes))
		for i, home := range homes {
			here = here || home.UID == n.UID
			names[i] = string(home.ID)
		}
		switch {
		case slices.Contains(n.RemovingVolumes, name):
			return fmt.Sprintf("its volume %q is being removed", name)
		case len(homes) == 0, here && (len(homes) == 1 || pinned):
		case len(homes) > 1:
			return fmt.Sprintf("several nodes have a volume %q (%s): ask for one of them", name, strings.Join(names, ", "))
		default:
			return fmt.Sprintf("the volume %q is on node %s, which is %s", name, homes[0].ID, homes[0].Status)
		}
	}
	if m.DiskLimited && !n.DiskLimits {
		return "it cannot limit disks: muster doctor says there what it lacks"
	}
	for _, path := range m.HostPaths {
		if !n.AllowsHostPath(path) {
			return fmt.Sprintf("it does not allow the host path %s: start its agent with --allow-host-path %s", path, path)
		}
	}
	return ""
}
