package store_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"gorm.io/gorm/schema"
	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

// texts have no NUL and are UTF-8, as the root's validation demands.
func texts() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"", " ", "null", "\"", "<a href='x'>&amp;</a>", "\u2028\U0001f980", "2026-05-04", "1", "true"}),
		rapid.Map(rapid.String(), func(s string) string { return strings.ReplaceAll(s, "\x00", "") }),
	)
}

func stringMaps() *rapid.Generator[muster.Map] {
	return rapid.OneOf(
		rapid.Just[muster.Map](nil),
		rapid.Map(rapid.MapOf(texts(), texts()), func(m map[string]string) muster.Map { return m }),
	)
}

func lists() *rapid.Generator[[]string] {
	return rapid.OneOf(rapid.Just[[]string](nil), rapid.SliceOf(texts()))
}

func times() *rapid.Generator[time.Time] {
	return rapid.OneOf(
		rapid.Just(time.Time{}),
		rapid.Map(rapid.Int64Range(0, 4102444800_000000000), func(ns int64) time.Time { return time.Unix(0, ns).UTC() }),
		rapid.Map(rapid.Int64Range(0, 4102444800), func(s int64) time.Time { return time.Unix(s, 0).UTC() }),
	)
}

func nodes(n int) *rapid.Generator[*muster.Node] {
	return rapid.Custom(func(t *rapid.T) *muster.Node {
		return &muster.Node{
			UID: muster.NodeUID(fmt.Sprintf("%016x", n)), ID: muster.NodeID(texts().Draw(t, "id")),
			Hostname: texts().Draw(t, "hostname"), Addr: texts().Draw(t, "addr"), Port: rapid.Int().Draw(t, "port"),
			Role: muster.NodeRole(texts().Draw(t, "role")), CPUCount: rapid.Int().Draw(t, "cpu"),
			MemoryMB: rapid.Int().Draw(t, "memory"), Labels: stringMaps().Draw(t, "labels"), Images: lists().Draw(t, "images"),
			Version: texts().Draw(t, "version"), BootID: texts().Draw(t, "boot id"),
			Incarnation: rapid.Int64().Draw(t, "incarnation"), Status: muster.NodeStatus(texts().Draw(t, "status")),
			StatusReason: texts().Draw(t, "reason"), Schedulable: rapid.Bool().Draw(t, "schedulable"),
			Subnet: texts().Draw(t, "subnet"), RegisteredAt: times().Draw(t, "registered at"),
			BirthHash: texts().Draw(t, "birth hash"), LastSeen: times().Draw(t, "last seen"),
		}
	})
}

func instances(n int, uids []muster.NodeUID) *rapid.Generator[*muster.Instance] {
	uid := rapid.SampledFrom(append([]muster.NodeUID{""}, uids...))
	return rapid.Custom(func(t *rapid.T) *muster.Instance {
		return &muster.Instance{
			ID: muster.InstanceIDOf(int64(n)), Name: texts().Draw(t, "name"), NodeUID: uid.Draw(t, "node"),
			Type: muster.InstanceType(texts().Draw(t, "type")), CPULimit: rapid.Int().Draw(t, "cpu"),
			MemLimitMB: rapid.Int().Draw(t, "memory"), BaseImage: texts().Draw(t, "image"),
			Command: lists().Draw(t, "command"), EnvNames: lists().Draw(t, "env names"), Labels: stringMaps().Draw(t, "labels"),
			NodeSelector: stringMaps().Draw(t, "selector"), Status: muster.InstanceStatus(texts().Draw(t, "status")),
			StatusReason: texts().Draw(t, "reason"), Desired: muster.DesiredStatus(texts().Draw(t, "desired")),
			Generation: rapid.Int64().Draw(t, "generation"), Machine: texts().Draw(t, "machine"),
			Addr: texts().Draw(t, "addr"), PID: rapid.Ptr(rapid.Int(), true).Draw(t, "pid"),
			ExitCode: rapid.Ptr(rapid.Int(), true).Draw(t, "exit"), CreatedAt: times().Draw(t, "created"),
			StartedAt: rapid.Ptr(times(), true).Draw(t, "started"), EndedAt: rapid.Ptr(times(), true).Draw(t, "ended"),
			TerminatedAt:  rapid.Ptr(times(), true).Draw(t, "terminated"),
			QueueDeadline: rapid.Ptr(times(), true).Draw(t, "deadline"), Reserved: rapid.Bool().Draw(t, "reserved"),
			DrainUntil:      rapid.Ptr(times(), true).Draw(t, "drains"),
			DesiredRevision: rapid.Int64().Draw(t, "desired revision"), PinnedNode: uid.Draw(t, "pinned"),
			Env: stringMaps().Draw(t, "env"), Output: texts().Draw(t, "output"),
		}
	})
}

func TestStore_LoadsWhatWasWritten(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	j := newJournal(load(t, s))
	rapid.Check(t, func(t *rapid.T) {
		var all []any
		var uids []muster.NodeUID
		for n := range 3 {
			node := nodes(n).Draw(t, "node")
			all, uids = append(all, node), append(uids, node.UID)
		}
		for n := range 3 {
			all = append(all, instances(n+1, uids).Draw(t, "instance"))
		}
		b := j.batch(all...)
		if err := s.Commit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sameJSON(t, b.Nodes, state.Nodes)
		sameJSON(t, b.Instances, state.Instances)
		// What JSON leaves out counts as well.
		if diff := cmp.Diff(b.Nodes, state.Nodes) + cmp.Diff(b.Instances, state.Instances); diff != "" {
			t.Fatalf("-written +loaded:\n%s", diff)
		}
		changes, err := s.ChangesAfter(t.Context(), b.From, 100)
		if err != nil || len(changes) != len(b.Changes) {
			t.Fatalf("%d changes: %v", len(changes), err)
		}
		for i, c := range changes {
			sameJSON(t, b.Changes[i].Node, c.Node)
			sameJSON(t, b.Changes[i].Instance, c.Instance)
		}
	})
}

func sameJSON(t *rapid.T, written, loaded any) {
	t.Helper()
	w, err := json.Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	l, err := json.Marshal(loaded)
	if err != nil {
		t.Fatal(err)
	}
	if string(w) != string(l) {
		t.Fatalf("written and loaded differ:\n%s\n%s", w, l)
	}
}

func TestStore_KeepsChangesWhole(t *testing.T) {
	s := open(t, store.Options{Dir: t.TempDir()})
	j := newJournal(load(t, s))
	node := aNode(1)
	b := j.batch(node, anInstance(1, node), node)
	first, last := b.Changes[0], b.Changes[2]
	last.Previous = &muster.Facets{Labels: muster.Map{"a": "b"}, Role: muster.Compute, Schedulable: true, NodeUID: "n"}
	last.PreviousStatus, last.Status, last.Deleted = "HEALTHY", "REMOVED", true
	until := last.At.Add(time.Hour)
	brake := &muster.Condition{Name: muster.Brake, Status: muster.Holds, Reason: "a test", Since: last.At, Until: &until, Revision: b.To + 1}
	b.Conditions = []*muster.Condition{brake}
	image := &muster.Image{
		Name: "debian", Digest: "sha256:a", Size: 1, UnpackedSize: 1 << 40, Entries: 2, Boot: true, Source: "a test",
		ImportedAt: last.At, Revision: b.To + 2,
	}
	b.Images = []*muster.Image{image, {Name: "gone", ImportedAt: last.At}}
	b.Changes = append(b.Changes, &muster.Change{
		Revision: b.To + 1, Batch: b.Tag, At: last.At, Kind: muster.KindCluster, ObjectID: string(brake.Name), Status: "HOLDS", Condition: brake,
	})
	b.Changes = append(b.Changes, &muster.Change{
		Revision: b.To + 2, Batch: b.Tag, At: last.At, Kind: muster.KindImage, ObjectID: image.ObjectID(), Image: image,
	})
	b.To += 2
	b.DeletedImages = []string{"gone"}
	commit(t, s, b)
	if first.Object != "" {
		t.Error("the batch was changed")
	}
	if diff := cmp.Diff(b.Conditions, load(t, s).Conditions); diff != "" {
		t.Errorf("conditions (-written +loaded):\n%s", diff)
	}
	if diff := cmp.Diff(b.Images[:1], load(t, s).Images); diff != "" {
		t.Errorf("images (-written +loaded):\n%s", diff)
	}
	got, err := s.ChangesAfter(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range b.Changes {
		want := *c
		want.Epoch = j.epoch
		if err := want.Encode(); err != nil {
			t.Fatal(err)
		}
		if c.Node != nil { // what is decoded has nothing volatile
			want.Node = new(*c.Node)
			want.Node.LastSeen = time.Time{}
		}
		if c.Instance != nil {
			want.Instance = new(*c.Instance)
			want.Instance.Env = nil
		}
		if diff := cmp.Diff(&want, got[i]); diff != "" {
			t.Errorf("change %d (-written +read):\n%s", c.Revision, diff)
		}
	}
	for _, c := range got {
		if strings.Contains(c.Object, "secret") {
			t.Errorf("a change has a secret: %s", c.Object)
		}
	}
}

func TestStore_WritesUTC(t *testing.T) {
	dir := t.TempDir()
	s := open(t, store.Options{Dir: dir})
	j := newJournal(load(t, s))
	zone := time.FixedZone("somewhere", -5*3600)
	node := aNode(1)
	node.RegisteredAt, node.LastSeen = node.RegisteredAt.In(zone), node.LastSeen.In(zone)
	instance := anInstance(1, node)
	instance.CreatedAt, instance.EndedAt = instance.CreatedAt.In(zone), new(instance.CreatedAt.In(zone))
	b := j.batch(node, instance)
	b.Changes[0].At = b.Changes[0].At.In(zone)
	b.Requests = []*muster.Request{{Principal: "p", RequestID: "r", At: epochStart().In(zone)}}
	commit(t, s, b)
	if b.Nodes[0].RegisteredAt.Location() != zone || b.Instances[0].CreatedAt.Location() != zone {
		t.Error("the batch was changed")
	}
	state := load(t, s)
	changes, err := s.ChangesAfter(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	n, i := state.Nodes[0], state.Instances[0]
	for name, at := range map[string]time.Time{
		"registered": n.RegisteredAt, "last seen": n.LastSeen, "created": i.CreatedAt, "started": *i.StartedAt,
		"ended": *i.EndedAt, "change": changes[0].At, "node in the change": changes[0].Node.RegisteredAt,
		"instance in the change": changes[1].Instance.CreatedAt, "request": state.Requests[0].At,
	} {
		if at.Location() != time.UTC {
			t.Errorf("%s is in %s", name, at.Location())
		}
	}
	if !n.RegisteredAt.Equal(node.RegisteredAt) || !changes[1].Instance.CreatedAt.Equal(instance.CreatedAt) {
		t.Error("a time moved")
	}
}

// TestStore_HasAColumnForEachField finds a field that was added without a
// migration, or a column that nothing fills any more.
func TestStore_HasAColumnForEachField(t *testing.T) {
	dir := t.TempDir()
	open(t, store.Options{Dir: dir})
	db := rawDB(t, dir)
	for _, model := range []any{muster.Node{}, muster.Instance{}, muster.Change{}, muster.Request{}} {
		parsed, err := schema.Parse(model, &sync.Map{}, schema.NamingStrategy{})
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]bool{}
		for _, name := range parsed.DBNames {
			fields[name] = true
		}
		columns := map[string]bool{}
		rows, err := db.QueryContext(t.Context(), "SELECT name FROM pragma_table_info(?)", parsed.Table)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				t.Fatal(err)
			}
			columns[name] = true
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fields, columns); diff != "" {
			t.Errorf("%s (-fields +columns):\n%s", parsed.Table, diff)
		}
	}
}
