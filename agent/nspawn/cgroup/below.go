package cgroup

import "path/filepath"

// Below returns a group in this one, whose limits bind in it too. It makes nothing.
func (g Group) Below(name string) Group {
	down := Group{V2: g.V2, Base: g.Dirs[unified], Dirs: map[string]string{}}
	for controller, dir := range g.Dirs {
		down.Dirs[controller] = filepath.Join(dir, name)
	}
	return down
}

// Here returns the group that the process is in, to come back to.
func Here() (Group, error) {
	own, err := locate("")
	if err != nil {
		return Group{}, err
	}
	return Group{Dirs: own.dirs}, nil
}
