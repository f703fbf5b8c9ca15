package registry

import (
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/muster-cloud/muster"
)

// meta is the one row that says what the rest of a snapshot is: a snapshot
// knows its revision.
type meta struct {
	clusterUID string
	epoch      string
	term       int64
	head       muster.Position
	at         time.Time // of the newest change; never goes back
	sequences  map[string]int64
	peers      uint64 // the sum of the live nodes' peerSum
}

func (m *meta) clone() *meta {
	c := *m
	c.sequences = maps.Clone(m.sequences)
	return &c
}

// use is what is derived from a node's instances, kept in step with them.
type use struct {
	uid             muster.NodeUID
	held            muster.Capacity // by those that are reserved
	rows            int             // that hold an address
	desiredRevision int64
	// The newest report that was applied; an older one is ignored.
	reportIncarnation, reportSequence int64
}

// View reads one consistent state: a snapshot, or inside the committer the
// batch so far. It must not be kept beyond the call that it was given to,
// except by those that made a snapshot.
type View struct {
	txn *memdb.Txn
	now *meta // of the batch so far; nil in a snapshot, which has it as a row
	// sight is what of it is seen; zero: everything. It limits what LiveNode, LiveNodes,
	// Instance, Instances and InstancesOn give.
	sight sight
}

func (v View) one(table, index string, args ...any) any {
	object, err := v.txn.First(table, index, args...)
	if err != nil {
		panic(fmt.Sprintf("registry: read %s by %s: %v", table, index, err)) // the schema is ours: a defect
	}
	return object
}

func (v View) iterator(table, index string, args ...any) memdb.ResultIterator {
	it, err := v.txn.Get(table, index, args...)
	if err != nil {
		panic(fmt.Sprintf("registry: list %s by %s: %v", table, index, err))
	}
	return it
}

func rows[T any](v View, table, index string, args ...any) iter.Seq[T] {
	return func(yield func(T) bool) { drain(v.iterator(table, index, args...), yield) }
}

func rowsFrom[T any](v View, table, index string, args ...any) iter.Seq[T] {
	return func(yield func(T) bool) {
		it, err := v.txn.LowerBound(table, index, args...)
		if err != nil {
			panic(fmt.Sprintf("registry: list %s from %v: %v", table, args, err))
		}
		drain(it, yield)
	}
}

func drain[T any](it memdb.ResultIterator, yield func(T) bool) {
	for object := it.Next(); object != nil; object = it.Next() {
		if !yield(object.(T)) {
			return
		}
	}
}

func (v View) meta() *meta {
	if v.now != nil {
		return v.now
	}
	return v.one(tableMeta, byID).(*meta)
}

// Head is the newest revision of the view.
func (v View) Head() muster.Position { return v.meta().head }

// NodeByUID returns the node, also a hidden one (pruned, removed), or nil.
func (v View) NodeByUID(uid muster.NodeUID) *muster.Node {
	n, _ := v.one(tableNode, byID, uid).(*muster.Node)
	return n
}

// nodeByBirth returns the node whose agent gave a birth token with that hash, or nil.
func (v View) nodeByBirth(hash string) *muster.Node {
	n, _ := v.one(tableNode, byBirth, hash).(*muster.Node)
	return n
}

// LiveNode returns the node of that name or uid, or nil when there is none or
// it is hidden.
func (v View) LiveNode(id string) *muster.Node {
	for n := range rows[*muster.Node](v, tableNode, byName, muster.NodeID(id)) {
		if n.Live() && v.sight.node(n) {
			return n
		}
	}
	if n := v.NodeByUID(muster.NodeUID(id)); n != nil && n.Live() && v.sight.node(n) {
		return n
	}
	return nil
}

// Nodes walks all nodes in order of their id, the hidden ones too.
func (v View) Nodes() iter.Seq[*muster.Node] { return rows[*muster.Node](v, tableNode, byName) }

// LiveNodes walks the nodes that are in the registry, in order of their id.
func (v View) LiveNodes() iter.Seq[*muster.Node] {
	return func(yield func(*muster.Node) bool) {
		for n := range v.Nodes() {
			if n.Live() && v.sight.node(n) && !yield(n) {
				return
			}
		}
	}
}

// Instance returns the instance, or nil.
func (v View) Instance(id muster.InstanceID) *muster.Instance {
	i := v.rawInstance(id)
	if i == nil || !v.sight.instance(v, i) {
		return nil
	}
	return i
}

// rawInstance is Instance whatever is seen.
func (v View) rawInstance(id muster.InstanceID) *muster.Instance {
	i, _ := v.one(tableInstance, byID, id).(*muster.Instance)
	return i
}

// Instances walks all instances in order of their number.
func (v View) Instances() iter.Seq[*muster.Instance] {
	return v.seen(rows[*muster.Instance](v, tableInstance, byID))
}

// InstancesOn walks a node's instances in order of their number.
func (v View) InstancesOn(uid muster.NodeUID) iter.Seq[*muster.Instance] {
	return v.seen(rows[*muster.Instance](v, tableInstance, byNode, uid))
}

// InstancesIn walks the instances in a status in order of their number.
func (v View) InstancesIn(s muster.InstanceStatus) iter.Seq[*muster.Instance] {
	return v.seen(rows[*muster.Instance](v, tableInstance, byStatus, s))
}

// Condition returns a condition of the cluster, or nil when it never held.
func (v View) Condition(name muster.ConditionName) *muster.Condition {
	c, _ := v.one(tableCondition, byID, name).(*muster.Condition)
	return c
}

// Holds reports whether a condition of the cluster holds.
func (v View) Holds(name muster.ConditionName) bool {
	c := v.Condition(name)
	return c != nil && c.Status == muster.Holds
}

// Conditions walks the conditions that hold or have held.
func (v View) Conditions() iter.Seq[*muster.Condition] {
	return rows[*muster.Condition](v, tableCondition, byID)
}

// Image returns the image of that name, or nil.
func (v View) Image(name string) *muster.Image {
	i, _ := v.one(tableImage, byID, name).(*muster.Image)
	return i
}

// Images walks the images in order of their name.
func (v View) Images() iter.Seq[*muster.Image] { return rows[*muster.Image](v, tableImage, byID) }

// Key returns the access key, or nil.
func (v View) Key(id muster.KeyID) *muster.AccessKey {
	k, _ := v.one(tableKey, byID, id).(*muster.AccessKey)
	return k
}

// Keys walks the access keys in order of their number.
func (v View) Keys() iter.Seq[*muster.AccessKey] { return rows[*muster.AccessKey](v, tableKey, byID) }

// KeysOf walks the keys that were issued to a node.
func (v View) KeysOf(uid muster.NodeUID) iter.Seq[*muster.AccessKey] {
	return rows[*muster.AccessKey](v, tableKey, byNode, uid)
}

// Token returns the join token, or nil.
func (v View) Token(id muster.TokenID) *muster.JoinToken {
	t, _ := v.one(tableToken, byID, id).(*muster.JoinToken)
	return t
}

// Tokens walks the join tokens in order of their number.
func (v View) Tokens() iter.Seq[*muster.JoinToken] {
	return rows[*muster.JoinToken](v, tableToken, byID)
}

// request returns the record of a requestId, or nil.
func (v View) request(principal, id string) *muster.Request {
	r, _ := v.one(tableRequest, byID, principal, id).(*muster.Request)
	return r
}

// use returns what is derived from a node's instances; never nil.
func (v View) use(uid muster.NodeUID) *use {
	if u, ok := v.one(tableUse, byID, uid).(*use); ok {
		return u
	}
	return &use{uid: uid}
}
