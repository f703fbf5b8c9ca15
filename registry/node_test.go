package registry_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

func TestRegisterNode_Identity(t *testing.T) {
	w := open(t, setup{})
	first := w.join(t, "n1", 2, 1024)
	again := nodeInput("n1", 2, 1024)
	again.UID, again.Incarnation = &first.UID, 2

	t.Run("a restart is itself", func(t *testing.T) {
		out, err := w.RegisterNode(ctx, again)
		if err != nil || out.Node.UID != first.UID || out.Node.Incarnation != 2 || out.Node.Subnet != first.Subnet {
			t.Fatalf("got %+v, %v", out, err)
		}
	})
	t.Run("registering twice is one change", func(t *testing.T) {
		before := w.ServerInfo().Revision
		if _, err := w.RegisterNode(ctx, again); err != nil {
			t.Fatal(err)
		}
		if after := w.ServerInfo().Revision; after != before {
			t.Errorf("revision went from %d to %d", before, after)
		}
	})
	t.Run("an older start is superseded", func(t *testing.T) {
		old := again
		old.Incarnation = 1
		_, err := w.RegisterNode(ctx, old)
		wantCode(t, err, muster.Superseded)
		_, err = w.Heartbeat(ctx, muster.HeartbeatInput{UID: first.UID, Incarnation: 1})
		wantCode(t, err, muster.Superseded)
	})
	t.Run("a stranger cannot take the name", func(t *testing.T) {
		_, err := w.RegisterNode(ctx, nodeInput("n1", 2, 1024))
		wantCode(t, err, muster.AlreadyExists)
	})
	t.Run("a copy of the state directory is told apart", func(t *testing.T) {
		twin := again
		twin.Addr, twin.Incarnation = "127.0.0.9", 3
		w.agents.identity = func(string, int) (muster.NodeUID, int64, error) { return first.UID, 2, nil }
		_, err := w.RegisterNode(ctx, twin)
		wantCode(t, err, muster.DuplicateIdentity)
		w.agents.identity = func(string, int) (muster.NodeUID, int64, error) { return "", 0, errors.New("refused") }
		out, err := w.RegisterNode(ctx, twin)
		if err != nil || out.Node.Addr != "127.0.0.9" {
			t.Errorf("an address change with nobody at the old one: %+v, %v", out, err)
		}
	})
	t.Run("the answer to a first registration got lost", func(t *testing.T) {
		in := nodeInput("n3", 2, 1024)
		in.BirthToken = "a secret of n3"
		lost, err := w.RegisterNode(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		if n := lost.Node; n.BirthHash == "" || strings.Contains(n.BirthHash, in.BirthToken) {
			t.Errorf("the token is kept as %q, want a hash", n.BirthHash)
		}
		in.Incarnation, in.BootID = 2, "another" // neither the agent nor its host is as it was
		other := muster.NodeUID("n-of-another-database")
		for _, in.UID = range []*muster.NodeUID{nil, &other} {
			if out, err := w.RegisterNode(ctx, in); err != nil || out.Node.UID != lost.Node.UID || out.Node.Incarnation != 2 {
				t.Errorf("got %+v, %v", out, err)
			}
		}
		in.UID, in.BirthToken = nil, "a secret of somebody's"
		_, err = w.RegisterNode(ctx, in)
		wantCode(t, err, muster.AlreadyExists)
	})
	t.Run("a copy from before the first registration is told apart", func(t *testing.T) {
		in := nodeInput("n4", 2, 1024)
		in.BirthToken = "a secret of n4"
		first, err := w.RegisterNode(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		w.agents.identity = func(string, int) (muster.NodeUID, int64, error) { return first.Node.UID, 1, nil }
		in.ID, in.Addr = "n5", "127.0.0.5"
		_, err = w.RegisterNode(ctx, in)
		wantCode(t, err, muster.DuplicateIdentity)
	})
	t.Run("an unknown uid is a new node", func(t *testing.T) {
		uid := muster.NodeUID("n-of-another-database")
		in := nodeInput("n2", 2, 1024)
		in.UID = &uid
		out, err := w.RegisterNode(ctx, in)
		if err != nil || out.Node.UID == uid || out.Node.Subnet == first.Subnet {
			t.Errorf("got %+v, %v", out, err)
		}
	})
}

func TestRegisterNode_RefusesBadInput(t *testing.T) {
	w := open(t, setup{})
	for name, c := range map[string]struct {
		change func(*muster.RegisterNodeInput)
		field  string
	}{
		"an empty id":         {func(in *muster.RegisterNodeInput) { in.ID = "" }, "id"},
		"a long id":           {func(in *muster.RegisterNodeInput) { in.ID = muster.NodeID(strings.Repeat("x", 300)) }, "id"},
		"a control character": {func(in *muster.RegisterNodeInput) { in.ID = "a\x07b" }, "id"},
		"a NUL":               {func(in *muster.RegisterNodeInput) { in.Hostname = "a\x00b" }, "hostname"},
		"broken UTF-8":        {func(in *muster.RegisterNodeInput) { in.Labels = muster.Map{"k": "\xff"} }, "labels.k"},
		"negative capacity":   {func(in *muster.RegisterNodeInput) { in.MemoryMB = -1 }, "memoryMb"},
		"no CPU":              {func(in *muster.RegisterNodeInput) { in.CPUCount = 0 }, "cpuCount"},
		"a name for an IP":    {func(in *muster.RegisterNodeInput) { in.Addr = "localhost" }, "addr"},
		"a port too high":     {func(in *muster.RegisterNodeInput) { in.Port = 70000 }, "port"},
		"an unknown role":     {func(in *muster.RegisterNodeInput) { in.Role = "KING" }, "role"},
		"no incarnation":      {func(in *muster.RegisterNodeInput) { in.Incarnation = 0 }, "incarnation"},
	} {
		t.Run(name, func(t *testing.T) {
			in := nodeInput("n1", 2, 1024)
			c.change(&in)
			_, err := w.RegisterNode(ctx, in)
			wantCode(t, err, muster.Invalid)
			if got := err.(*muster.Error).Field; got != c.field {
				t.Errorf("field %q (%v), want %q", got, err, c.field)
			}
		})
	}
	if got := w.ServerInfo().Revision; got != 0 {
		t.Errorf("refused input made %d changes", got)
	}
}

func TestRemoveNode_LosesItsInstancesAndRefusesIt(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 4, 4096)
	kept, going := w.launch(t, launch(muster.Nano)), w.launch(t, launch(muster.Nano))
	if _, _, err := w.TerminateInstance(ctx, going.ID); err != nil {
		t.Fatal(err)
	}
	removed, _, err := w.RemoveNode(ctx, "n1")
	if err != nil || removed.Status != muster.Removed || removed.StatusReason != "removed by alice" {
		t.Fatalf("remove: %+v, %v", removed, err)
	}
	if w.Node("n1") != nil {
		t.Error("a removed node is shown")
	}
	wantStatus(t, w, kept.ID, muster.Lost)
	wantStatus(t, w, going.ID, muster.Terminated)
	_, err = w.Heartbeat(ctx, muster.HeartbeatInput{UID: n.UID, Incarnation: 1})
	wantCode(t, err, muster.UnknownNode)
	in := nodeInput("n1", 4, 4096)
	in.UID = &n.UID
	_, err = w.RegisterNode(ctx, in)
	wantCode(t, err, muster.Forbidden)
	if fresh := w.join(t, "n1", 4, 4096); fresh.UID == n.UID || fresh.Subnet == n.Subnet {
		t.Errorf("a new machine of that name is %+v", fresh)
	}
	if gone, _, err := w.TerminateInstance(ctx, kept.ID); err != nil || gone.Status != muster.Terminated {
		t.Errorf("terminating a lost instance: %+v, %v", gone, err)
	}
	_, _, err = w.RemoveNode(ctx, "nosuch")
	wantCode(t, err, muster.NotFound)
}

func TestRegisterNode_SubnetsRunOut(t *testing.T) {
	w := open(t, setup{opts: optionsWithNetwork("10.9.0.0/23")})
	w.join(t, "a", 1, 1024)
	w.join(t, "b", 1, 1024)
	_, err := w.RegisterNode(ctx, nodeInput("c", 1, 1024))
	wantCode(t, err, muster.Limit)
}

func TestNodes_Pages(t *testing.T) {
	w := open(t, setup{})
	for _, id := range []string{"c", "a", "e", "b", "d"} {
		w.join(t, id, 1, 1024)
	}
	var got []string
	two := 2
	page := muster.PageInput{First: &two}
	for {
		c, err := w.Nodes(nil, page)
		if err != nil {
			t.Fatal(err)
		}
		if c.TotalCount() != 5 {
			t.Fatalf("total %d, want 5", c.TotalCount())
		}
		for _, e := range c.Edges {
			got = append(got, string(e.Node.ID))
		}
		if !c.PageInfo.HasNextPage {
			break
		}
		page.After = c.PageInfo.EndCursor
	}
	if strings.Join(got, "") != "abcde" {
		t.Errorf("pages gave %v", got)
	}
	million := 1_000_000
	_, err := w.Nodes(nil, muster.PageInput{First: &million})
	wantCode(t, err, muster.Invalid)
	garbage := "???"
	_, err = w.Nodes(nil, muster.PageInput{After: &garbage})
	wantCode(t, err, muster.Invalid)
}

// What is gone can still be asked for by its name.
func TestChanges_OfARemovedNodeByItsName(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "a", 1, 300)
	if _, _, err := w.RemoveNode(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	found, err := w.Changes(ctx, nil, new("a"), nil)
	if err != nil || len(found.Edges) != 2 || found.Edges[1].Node.ObjectID != string(n.UID) {
		t.Errorf("%+v, %v, want that it joined and was removed", found, err)
	}
}
