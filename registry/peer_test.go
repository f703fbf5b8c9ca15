package registry_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
)

// peersTag is what the answer to a node's beat says.
func (w *world) peersTag(t *testing.T, n *muster.Node) string {
	t.Helper()
	beat, err := w.Heartbeat(t.Context(), muster.HeartbeatInput{UID: n.UID, Incarnation: n.Incarnation})
	if err != nil {
		t.Fatal(err)
	}
	return beat.Peers
}

func TestPeers_TagMovesWithThePeersOnly(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	a := w.join(t, "a", 4, 4096)
	alone := w.peersTag(t, a)
	b := w.join(t, "b", 4, 4096)
	both := w.peersTag(t, a)
	if both == alone || both != w.peersTag(t, b) {
		t.Errorf("the tag is %s with one node, %s with two, and %s as b is told", alone, both, w.peersTag(t, b))
	}
	i := w.launch(t, muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal"})
	w.report(t, b, 1, map[muster.InstanceID]muster.InstanceStatus{})
	if _, _, err := w.CordonNode(t.Context(), "b", "to be left alone"); err != nil {
		t.Fatal(err)
	}
	if now := w.peersTag(t, a); now != both {
		t.Errorf("the tag went from %s to %s with a launch of %s and a cordon", both, now, i.ID)
	}

	w.stop()
	w = open(t, setup{dir: dir})
	if now := w.peersTag(t, a); now != both {
		t.Errorf("the tag went from %s to %s with a restart", both, now)
	}
	got, err := w.Peers(t.Context(), a.UID, a.Incarnation)
	want := &muster.Peers{Tag: both, Network: "10.213.0.0/16", Subnet: a.Subnet, Nodes: []*muster.Peer{{ID: "b", Addr: b.Addr, Subnet: b.Subnet}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}

	moved := muster.RegisterNodeInput{ID: "b", UID: &b.UID, Addr: "192.0.2.99", Port: b.Port, Role: b.Role, CPUCount: 4, MemoryMB: 4096, Incarnation: b.Incarnation + 1}
	if _, err := w.RegisterNode(t.Context(), moved); err != nil {
		t.Fatal(err)
	}
	if now := w.peersTag(t, a); now == both {
		t.Error("the tag did not move with b's address")
	}
	if _, _, err := w.RemoveNode(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if now := w.peersTag(t, a); now != alone {
		t.Errorf("without b the tag is %s, before b it was %s", now, alone)
	}
	if got, err := w.Peers(t.Context(), a.UID, a.Incarnation); err != nil || len(got.Nodes) != 0 {
		t.Errorf("without b the peers are %+v, %v", got, err)
	}
}

func TestPeers_RefusesOtherAgents(t *testing.T) {
	w := open(t, setup{})
	a := w.join(t, "a", 4, 4096)
	for name, c := range map[string]struct {
		uid         muster.NodeUID
		incarnation int64
		want        muster.Code
	}{
		"a stranger":     {"n-none", 1, muster.UnknownNode},
		"a later start":  {a.UID, a.Incarnation + 1, muster.UnknownNode},
		"an older start": {a.UID, a.Incarnation - 1, muster.Superseded},
	} {
		if _, err := w.Peers(t.Context(), c.uid, c.incarnation); muster.CodeOf(err) != c.want {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}
