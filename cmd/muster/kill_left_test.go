package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
)

// payloads counts the payloads that run, by the command line and by being their machine's process 2.
func (k *killer) payloads() int {
	return len(slices.DeleteFunc(pidsOf(func(words []string) bool {
		return words[0] == "/bin/sh" && strings.Contains(words[len(words)-1], k.marker+";")
	}), func(pid int) bool {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, line, _ := strings.Cut(string(text), "\nNSpid:")
		line, _, _ = strings.Cut(line, "\n")
		return !strings.HasSuffix(line, "\t2")
	}))
}

// beside tells what of an instance is there that should not be, or the other way around.
func (k *killer) beside(want desire, disk string) (differs []string) {
	machine := fmt.Sprintf("%s-%d", disk, want.generation)
	runs, gone := want.status == muster.Running, want.status == muster.Terminated
	var has []string
	state := k.stateDir()
	for dir, prefix := range map[string]string{
		filepath.Join(state, "machines"): "", filepath.Join(state, "locks"): "", filepath.Join(state, "disks"): "",
		k.namespaces(): disk,
	} {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), prefix) {
				has = append(has, filepath.Base(dir)+"/"+entry.Name())
			}
		}
	}
	has = append(has, groupsOf(disk)...)
	var may []string
	if !gone {
		may = append(may, "machines/"+machine, "locks/"+machine, "disks/"+disk)
	}
	if runs {
		may = append(may, "netns/"+machine, "cgroup/"+machine)
	}
	for _, thing := range may {
		if !slices.Contains(has, thing) {
			differs = append(differs, "missing: "+thing)
		}
	}
	for _, thing := range has {
		if !slices.Contains(may, thing) {
			differs = append(differs, "left: "+thing)
		}
	}
	counts := map[string][2]int{ // what there is, and what there should be
		"payloads": {k.payloads(), 0}, "supervisors": {len(pidsOf(isSupervisorOf(disk))), 0},
		"veth interfaces": {k.veths(), 0}, "mounts": {k.mounts(), 0},
		"loop devices": {loops(k.stateDir()), 0},
	}
	for thing, n := range counts {
		if runs && thing != "mounts" && (thing != "loop devices" || k.diskLimitMB > 0) {
			n[1] = 1
		}
		if n[0] != n[1] {
			differs = append(differs, fmt.Sprintf("%d %s, want %d", n[0], thing, n[1]))
		}
	}
	return differs
}

func isSupervisorOf(disk string) func([]string) bool {
	return func(words []string) bool {
		return len(words) == 4 && words[1] == "shim" && strings.HasPrefix(filepath.Base(words[3]), disk+"-")
	}
}

// groupsOf returns the machines of a disk that have cgroups, each once.
func groupsOf(disk string) (all []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil
		}
		if i := strings.Index(entry.Name(), disk+"-"); i >= 0 { // a unit has the name in its own
			all = append(all, "cgroup/"+strings.TrimSuffix(entry.Name()[i:], ".service"))
			return filepath.SkipDir
		}
		return nil
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// loops counts the loop devices of a state directory's files.
func loops(dir string) (n int) {
	paths, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range paths {
		if text, _ := os.ReadFile(path); strings.HasPrefix(string(text), dir+"/") {
			n++
		}
	}
	return n
}
