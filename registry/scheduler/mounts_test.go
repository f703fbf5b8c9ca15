package scheduler_test

import (
	"slices"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

func TestPlace_Mounts(t *testing.T) {
	roomy := candidate("roomy", func(c *scheduler.Candidate) { c.Node.MemoryMB, c.Node.CPUCount = 8192, 16 })
	able := candidate("able", func(c *scheduler.Candidate) {
		c.Node.HostPaths, c.Node.DiskLimits, c.Node.RemovingVolumes = []string{"/srv"}, true, []string{"doomed"}
	})
	away := candidate("away", func(c *scheduler.Candidate) { c.Node.Status = muster.Pruned }).Node
	homes := map[string][]*muster.Node{"here": {able.Node}, "away": {away}, "both": {able.Node, roomy.Node}}
	for name, c := range map[string]struct {
		mounts scheduler.Mounts
		pinned muster.NodeUID
		want   muster.NodeID // empty: none
		reason string        // of able, when none
	}{
		"none":                           {scheduler.Mounts{}, "", "roomy", ""},
		"a new volume":                   {scheduler.Mounts{Volumes: []string{"new"}}, "", "roomy", ""},
		"a volume":                       {scheduler.Mounts{Volumes: []string{"here"}}, "", "able", ""},
		"a volume and a new one":         {scheduler.Mounts{Volumes: []string{"new", "here"}}, "", "able", ""},
		"a volume of a node that is not": {scheduler.Mounts{Volumes: []string{"here", "away"}}, "", "", `the volume "away" is on node away, which is PRUNED`},
		"one of several":                 {scheduler.Mounts{Volumes: []string{"both"}}, "", "", `several nodes have a volume "both" (able, roomy): ask for one of them`},
		"one of several, asked for":      {scheduler.Mounts{Volumes: []string{"both"}}, able.Node.UID, "able", ""},
		"one that is being removed":      {scheduler.Mounts{Volumes: []string{"doomed"}}, able.Node.UID, "", `its volume "doomed" is being removed`},
		"a host path":                    {scheduler.Mounts{HostPaths: []string{"/srv/x"}}, "", "able", ""},
		"a host path that nobody allows": {scheduler.Mounts{HostPaths: []string{"/srv", "/etc"}}, "", "", "it does not allow the host path /etc: start its agent with --allow-host-path /etc"},
		"a limited disk":                 {scheduler.Mounts{DiskLimited: true}, "", "able", ""},
	} {
		t.Run(name, func(t *testing.T) {
			need := ask
			need.Mounts, need.Pinned = c.mounts, c.pinned
			need.Mounts.Homes = homes
			v := scheduler.Place(need, slices.Values([]scheduler.Candidate{able, roomy}), scheduler.Options{})
			switch {
			case c.want != "" && (v.Node == nil || v.Node.ID != c.want):
				t.Errorf("placed on %+v, want %s; %+v", v.Node, c.want, v.Refusals)
			case c.want == "" && (v.Node != nil || v.Refusals[0].Reason != c.reason):
				t.Errorf("placed on %v: %+v, want %q", v.Node, v.Refusals, c.reason)
			}
		})
	}
}
