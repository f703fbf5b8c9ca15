package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

func candidate(id string, change func(*scheduler.Candidate)) scheduler.Candidate {
	c := scheduler.Candidate{FreeAddresses: 253, Node: &muster.Node{
		UID: muster.NodeUID("uid-" + id), ID: muster.NodeID(id), Role: muster.Compute, Status: muster.Healthy, Schedulable: true,
		CPUCount: 2, MemoryMB: 1024, Images: []string{"minimal"}, Labels: muster.Map{"zone": "a"},
	}}
	if change != nil {
		change(&c)
	}
	return c
}

var ask = scheduler.Ask{CPUPercent: 100, MemoryMB: 512, Image: "minimal"}

func TestPlace_PrefersWhoHasTheImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	with := func(used int) scheduler.Candidate {
		return candidate("with", func(c *scheduler.Candidate) {
			c.Node.Images = []string{muster.ImageRef("debian", digest)}
			c.Used.MemoryMB = used
		})
	}
	without := candidate("without", nil)
	for name, c := range map[string]struct {
		ask  scheduler.Ask
		used int // of 1024 MiB by the node that has it
		want muster.NodeID
	}{
		"equally full":                     {scheduler.Ask{CPUPercent: 25, MemoryMB: 128, Image: "debian", Digest: digest}, 0, "with"},
		"a little fuller":                  {scheduler.Ask{CPUPercent: 25, MemoryMB: 128, Image: "debian", Digest: digest}, 128, "with"},
		"much fuller":                      {scheduler.Ask{CPUPercent: 25, MemoryMB: 128, Image: "debian", Digest: digest}, 512, "without"},
		"under another name":               {scheduler.Ask{CPUPercent: 25, MemoryMB: 128, Image: "bookworm", Digest: digest}, 128, "with"},
		"another image":                    {scheduler.Ask{CPUPercent: 25, MemoryMB: 128, Image: "debian", Digest: "sha256:" + strings.Repeat("b", 64)}, 128, "without"},
		"the node's own, by the same name": {scheduler.Ask{CPUPercent: 25, MemoryMB: 128, Image: "minimal"}, 0, "without"},
	} {
		t.Run(name, func(t *testing.T) {
			v := scheduler.Place(c.ask, slices.Values([]scheduler.Candidate{without, with(c.used)}), scheduler.Options{})
			if v.Node == nil || v.Node.ID != c.want {
				t.Errorf("it was placed by %+v, want %s", v, c.want)
			}
		})
	}
}

func TestPlace_SaysWhyNot(t *testing.T) {
	for want, c := range map[string]struct {
		ask        func(*scheduler.Ask)
		change     func(*scheduler.Candidate)
		need, have *int
	}{
		"it is UNHEALTHY":                              {change: func(c *scheduler.Candidate) { c.Node.Status = muster.Unhealthy }},
		"it is cordoned":                               {change: func(c *scheduler.Candidate) { c.Node.Schedulable = false }},
		"its role is SERVICE, not COMPUTE":             {change: func(c *scheduler.Candidate) { c.Node.Role = muster.ServiceRole }},
		"it has no free address":                       {change: func(c *scheduler.Candidate) { c.FreeAddresses = 0 }},
		`it lacks the image "debian"`:                  {ask: func(a *scheduler.Ask) { a.Image = "debian" }},
		"it lacks the labels that are asked for":       {ask: func(a *scheduler.Ask) { a.Selector = muster.Map{"zone": "b"} }},
		"another node was asked for":                   {ask: func(a *scheduler.Ask) { a.Pinned = "uid-other" }},
		"its port 80 is another's":                     {ask: func(a *scheduler.Ask) { a.Refuse = func(*muster.Node) string { return "its port 80 is another's" } }},
		"511 MiB of memory are free, 512 are needed":   {nil, func(c *scheduler.Candidate) { c.Used.MemoryMB = 513 }, new(512), new(511)},
		"99 % of a core are free, 100 are needed":      {nil, func(c *scheduler.Candidate) { c.Used.CPUPercent = 301 }, new(100), new(99)},
		"0 MiB of memory are free, 512 are needed":     {nil, func(c *scheduler.Candidate) { c.Used.MemoryMB = 5000 }, new(512), new(0)},
		"1024 MiB of memory are free, 1025 are needed": {func(a *scheduler.Ask) { a.MemoryMB = 1025 }, nil, new(1025), new(1024)},
		"400 % of a core are free, 401 are needed":     {func(a *scheduler.Ask) { a.CPUPercent = 401 }, nil, new(401), new(400)},
	} {
		t.Run(want, func(t *testing.T) {
			a := ask
			if c.ask != nil {
				c.ask(&a)
			}
			nodes := []scheduler.Candidate{candidate("n1", c.change)}
			v := scheduler.Place(a, slices.Values(nodes), scheduler.Options{})
			refusals := []muster.Refusal{{NodeID: "n1", Reason: want, Need: c.need, Have: c.have}}
			if diff := cmp.Diff(refusals, v.Refusals); v.Node != nil || diff != "" {
				t.Errorf("placed on %v (-want +got):\n%s", v.Node, diff)
			}
			never := a.MemoryMB > 1024 || a.CPUPercent > 400
			if v.Never != never {
				t.Errorf("never is %t, want %t", v.Never, never)
			}
			nodes = append([]scheduler.Candidate{candidate("n0", func(c *scheduler.Candidate) {
				c.Node.UID, c.Node.CPUCount, c.Node.MemoryMB = "uid-other", 8, 4096
				c.Node.Labels, c.Node.Images = muster.Map{"zone": "b"}, []string{"debian", "minimal"}
			})}, nodes...)
			a.Refuse = refuseOnly(a.Refuse, "n1")
			if diff := cmp.Diff(refusals, slices.Collect(scheduler.Refusals(a, slices.Values(nodes), scheduler.Options{}))); diff != "" {
				t.Errorf("beside a node that fits (-want +got):\n%s", diff)
			}
		})
	}
}

// refuseOnly has refuse judge one node, and nothing speak against the others.
func refuseOnly(refuse func(*muster.Node) string, id muster.NodeID) func(*muster.Node) string {
	return func(n *muster.Node) string {
		if refuse == nil || n.ID != id {
			return ""
		}
		return refuse(n)
	}
}

func TestPlace_TakesTheEmptiest(t *testing.T) {
	nodes := []scheduler.Candidate{
		candidate("busy", func(c *scheduler.Candidate) { c.Used = muster.Capacity{CPUPercent: 100, MemoryMB: 512, Instances: 1} }),
		candidate("b", func(c *scheduler.Candidate) { c.Used.Instances = 1 }),
		candidate("a", nil),
		candidate("c", nil),
	}
	if v := scheduler.Place(ask, slices.Values(nodes), scheduler.Options{}); v.Node == nil || v.Node.ID != "a" {
		t.Errorf("placed on %+v, want a: the emptiest with the fewest instances, the first of equals", v.Node)
	}
	if v := scheduler.Place(ask, slices.Values(nodes[:0]), scheduler.Options{}); v.Node != nil || v.Never || len(v.Refusals) != 0 {
		t.Errorf("without nodes: %+v", v)
	}
}

// TestPlace_Property: whatever is placed fits, and nothing is refused that fits.
func TestPlace_Property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := scheduler.Options{CPUOvercommit: rapid.Float64Range(0.5, 4).Draw(t, "overcommit")}
		a := scheduler.Ask{CPUPercent: rapid.IntRange(1, 400).Draw(t, "cpu"), MemoryMB: rapid.IntRange(1, 2048).Draw(t, "memory"), Image: "minimal"}
		var nodes []scheduler.Candidate
		for k := range rapid.IntRange(0, 6).Draw(t, "nodes") {
			nodes = append(nodes, candidate(fmt.Sprint(k), func(c *scheduler.Candidate) {
				c.Node.CPUCount, c.Node.MemoryMB = rapid.IntRange(1, 8).Draw(t, "cpus"), rapid.IntRange(1, 4096).Draw(t, "total")
				c.Used.CPUPercent, c.Used.MemoryMB = rapid.IntRange(0, 1600).Draw(t, "usedCPU"), rapid.IntRange(0, 4096).Draw(t, "used")
			}))
		}
		fits := func(c scheduler.Candidate) bool {
			total := o.Total(c.Node)
			return total.CPUPercent-c.Used.CPUPercent >= a.CPUPercent && total.MemoryMB-c.Used.MemoryMB >= a.MemoryMB
		}
		v := scheduler.Place(a, slices.Values(nodes), o)
		if v.Node == nil {
			if slices.ContainsFunc(nodes, fits) || len(v.Refusals) != len(nodes) {
				t.Fatalf("refused though one fits: %+v", v)
			}
			return
		}
		i := slices.IndexFunc(nodes, func(c scheduler.Candidate) bool { return c.Node == v.Node })
		if !fits(nodes[i]) {
			t.Fatalf("placed on %+v, where it does not fit", nodes[i])
		}
	})
}
