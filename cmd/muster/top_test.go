package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// used is what the tests look at of what is used.
type used struct {
	ID    string
	Usage *struct {
		CPUPercent float64 `json:"cpuPercent"`
		MemoryMB   int     `json:"memoryMb"`
	}
}

// TestTop measures a NANO that spins beside one that idles.
func TestTop(t *testing.T) {
	t.Setenv("MUSTER_HEARTBEAT_INTERVAL", "2s")
	c := newCloud(t)
	spinning := c.launch("NANO", "/bin/sh", "-c", "while :; do :; done")
	idle := c.launch("NANO")
	c.short = strings.SplitN(idle.Machine, "-", 2)[0]
	read := func(what string) map[string]used {
		t.Helper()
		var list []used
		if err := json.Unmarshal([]byte(c.muster(what, "top", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		byID := map[string]used{}
		for _, u := range list {
			byID[u.ID] = u
		}
		return byID
	}
	var all map[string]used
	c.until("a NANO that spins uses a quarter of a core", func() bool {
		all = read("instance")
		u := all[spinning.ID].Usage
		return u != nil && u.CPUPercent > 20 && u.CPUPercent < 30
	})
	if u := all[idle.ID].Usage; u == nil || u.CPUPercent > 5 || u.MemoryMB < 1 || u.MemoryMB > 128 {
		t.Errorf("the one that idles uses %+v", u)
	}
	if u := read("node")["e2e"].Usage; u == nil || u.CPUPercent < 20 || u.MemoryMB < 1 {
		t.Errorf("the node uses %+v", u)
	}
	if lines := strings.Split(c.muster("instance", "top"), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[1], spinning.ID+" ") || !strings.Contains(lines[1], fmt.Sprintf(" %d MiB", spinning.MemLimitMB)) {
		t.Errorf("the busiest is not first:\n%s", strings.Join(lines, "\n"))
	}
	c.muster("instance", "terminate", spinning.ID, "--wait")
	if left := read("instance"); len(left) != 1 {
		t.Errorf("after one is gone: %+v", left)
	}
}
