package muster

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// The limits of volumes.
const (
	MaxVolumeMounts = 16   // of an instance
	MaxVolumes      = 1024 // of a node
	MaxHostPaths    = 64   // that a node allows
	MaxPathBytes    = 1024
)

// The limits of disk limits, in MiB: a file system has to fit in, and the largest one.
const (
	MinDiskLimitMB = 32
	MaxDiskLimitMB = 16 << 20
)

// CheckDiskLimit refuses what cannot be a limit of a disk, in MiB; 0 is none.
func CheckDiskLimit(field string, mb int) error {
	if mb != 0 && (mb < MinDiskLimitMB || mb > MaxDiskLimitMB) {
		return InvalidField(field, "%d is not between %d and %d MiB; leave it out for no limit", mb, MinDiskLimitMB, MaxDiskLimitMB)
	}
	return nil
}

// VolumeMount is a directory of its node's that an instance sees: a volume, by
// Name, or what the node has at HostPath.
type VolumeMount struct {
	Name     string `json:"name,omitempty"`
	HostPath string `json:"hostPath,omitempty"` // of the node; one that its agent allows
	Path     string `json:"path"`               // inside
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// Volume is a directory on a node that outlives the instances that use it.
type Volume struct {
	Name    string
	NodeUID NodeUID
	// Removing says that it was removed here, and its node has not confirmed yet.
	Removing bool
}

// RemoveVolumeInput says which volume to remove.
type RemoveVolumeInput struct {
	Name string
	// NodeID is the id or uid of its node; nil: the one that has it.
	NodeID *string
}

// Validate refuses what no volume can be.
func (in *RemoveVolumeInput) Validate() error {
	if err := CheckName("name", in.Name); err != nil || in.NodeID == nil {
		return err
	}
	return CheckID("nodeId", *in.NodeID)
}

// VolumeEdge is a volume on a page.
type VolumeEdge struct {
	Cursor string
	Node   *Volume
}

// VolumeConnection is a page of volumes. Count counts all, when asked.
type VolumeConnection struct {
	Edges    []*VolumeEdge
	PageInfo *PageInfo
	Count    func() int
}

// TotalCount is how many there are in all.
func (c *VolumeConnection) TotalCount() int { return c.Count() }

// reserved are the places that every instance has for itself.
func reserved() []string { return []string{"/proc", "/sys", "/dev", "/run"} }

// Within reports whether a clean absolute path is dir or below it.
func Within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// CheckPath refuses what is not an absolute path in its shortest spelling.
func CheckPath(field, p string) error {
	if p == "" {
		return InvalidField(field, "it is empty; give an absolute path, such as /data")
	}
	if err := CheckText(field, p, MaxPathBytes); err != nil {
		return err
	}
	if !path.IsAbs(p) {
		return InvalidField(field, "%q is not absolute; begin it with a slash", p)
	}
	if clean := path.Clean(p); clean != p {
		return InvalidField(field, "%q is written in a roundabout way; write %q", p, clean)
	}
	return nil
}

// CheckVolumeMounts refuses mounts that no instance can have. The field of the
// error is below field, such as volumes[1].path.
func CheckVolumeMounts(field string, mounts []VolumeMount) error {
	if len(mounts) > MaxVolumeMounts {
		return InvalidField(field, "there are %d, at most %d are allowed", len(mounts), MaxVolumeMounts)
	}
	for i := range mounts {
		at := field + "[" + strconv.Itoa(i) + "]"
		if err := mounts[i].check(at); err != nil {
			return err
		}
		for _, m := range mounts[:i] {
			switch {
			case m.Path == mounts[i].Path:
				return InvalidField(at+".path", "two volumes have the path %s; give each its own", m.Path)
			case m.Name != "" && m.Name == mounts[i].Name:
				return InvalidField(at+".name", "the volume %s is there twice; name it once", m.Name)
			}
		}
	}
	return nil
}

func (m *VolumeMount) check(at string) error {
	switch {
	case m.Name == "" && m.HostPath == "":
		return InvalidField(at+".name", "it is empty; give the name of a volume, or a hostPath")
	case m.Name != "" && m.HostPath != "":
		return InvalidField(at+".hostPath", "it is given beside the name %q; give one of the two", m.Name)
	case m.Name != "":
		if err := CheckName(at+".name", m.Name); err != nil {
			return err
		}
	default:
		if err := CheckPath(at+".hostPath", m.HostPath); err != nil {
			return err
		}
	}
	if err := CheckPath(at+".path", m.Path); err != nil {
		return err
	}
	if m.Path == "/" {
		return InvalidField(at+".path", "a volume cannot be the whole root; give a directory in it, such as /data")
	}
	taken := func(dir string) bool { return Within(m.Path, dir) }
	if i := slices.IndexFunc(reserved(), taken); i >= 0 {
		return InvalidField(at+".path", "%q is in %s, which each instance has for itself; choose another place, such as /data", m.Path, reserved()[i])
	}
	return nil
}

// AllowsHostPath reports whether a node allows a host path, as far as the spelling
// tells: the agent also looks where links lead.
func (n *Node) AllowsHostPath(p string) bool {
	return slices.ContainsFunc(n.HostPaths, func(dir string) bool { return Within(p, dir) })
}

// HasVolume reports whether a node has a volume that is not being removed.
func (n *Node) HasVolume(name string) bool {
	return slices.Contains(n.Volumes, name) && !slices.Contains(n.RemovingVolumes, name)
}

func checkVolumeNames(field string, names []string) error {
	if len(names) > MaxVolumes {
		return InvalidField(field, "there are %d, at most %d are allowed", len(names), MaxVolumes)
	}
	for _, name := range names {
		if err := CheckName(field, name); err != nil {
			return err
		}
	}
	return nil
}

func checkHostPaths(field string, paths []string) error {
	if len(paths) > MaxHostPaths {
		return InvalidField(field, "there are %d, at most %d are allowed", len(paths), MaxHostPaths)
	}
	for _, p := range paths {
		if err := CheckPath(field, p); err != nil {
			return err
		}
	}
	return nil
}
