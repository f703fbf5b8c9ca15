package registry

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-memdb"

	"github.com/muster-cloud/muster"
)

// batch is one memory transaction that becomes one database transaction.
type batch struct {
	txn  *memdb.Txn
	view View
	seen func(muster.NodeUID) time.Time // when a node was last heard of
	meta *meta
	from int64
	tag  string

	nodes       touched[muster.NodeUID, *muster.Node]
	instances   touched[muster.InstanceID, *muster.Instance]
	conditions  touched[muster.ConditionName, *muster.Condition]
	images      touched[string, *muster.Image]
	services    touched[muster.ServiceID, *muster.Service]
	ports       portRange // that services are published at
	entries     touched[string, *muster.Entry]
	keys        touched[muster.KeyID, *muster.AccessKey]
	tokens      touched[muster.TokenID, *muster.JoinToken]
	audit       []*muster.AuditEntry
	requests    []*muster.Request
	changes     []*muster.Change
	nudges      map[muster.NodeUID]Nudge
	heard       []muster.NodeUID // that registered or reported
	frees       bool             // capacity was freed, or a node became eligible
	sequences   map[string]int64 // the new values of those that moved
	memoryMoved bool             // rows that are in memory only
	broken      error            // applying writes failed half-way: the whole of it has to go
}

func newBatch(db *memdb.MemDB, now time.Time, seen func(muster.NodeUID) time.Time) *batch {
	txn := db.Txn(true)
	b := &batch{
		txn: txn, view: View{txn: txn}, seen: seen, tag: randomTag(), nudges: map[muster.NodeUID]Nudge{},
	}
	b.meta = b.view.meta().clone()
	b.view.now = b.meta
	b.from = b.meta.head.Revision
	if now.After(b.meta.at) {
		b.meta.at = now
	}
	return b
}

func randomTag() string {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

func (b *batch) empty() bool { return !b.durable() && !b.memoryMoved }

// durable says whether there is anything for the database.
func (b *batch) durable() bool {
	return len(b.changes) > 0 || len(b.requests) > 0 || len(b.audit) > 0 || b.broken != nil
}

// run runs one mutation on the batch so far; one that fails or panics leaves
// no trace in it.
func (b *batch) run(actor muster.Actor, mutation Mutation) (err error) {
	w := &Writes{}
	applying := false
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic in a mutation: %v\n%s", p, debug.Stack())
			if applying {
				b.broken = err
			}
		}
	}()
	if err := mutation(b.view, w); err != nil {
		return err
	}
	if err := w.check(b.view); err != nil {
		return err
	}
	applying = true
	for _, s := range w.steps {
		b.apply(actor, s)
	}
	return nil
}

// finish makes the batch visible, its revision with it.
func (b *batch) finish() {
	b.insert(tableMeta, b.meta)
	b.txn.Commit()
}

func (b *batch) insert(table string, object any) {
	if err := b.txn.Insert(table, object); err != nil {
		panic(fmt.Sprintf("registry: insert into %s: %v", table, err))
	}
}

func (b *batch) delete(table string, object any) {
	if err := b.txn.Delete(table, object); err != nil {
		panic(fmt.Sprintf("registry: delete from %s: %v", table, err))
	}
}

func (b *batch) apply(actor muster.Actor, s step) {
	switch {
	case s.request != nil && s.deleted:
		b.delete(tableRequest, s.request)
		b.memoryMoved = true
	case s.request != nil:
		b.requests = append(b.requests, s.request)
		b.insert(tableRequest, s.request)
	case s.report != nil:
		u := *b.view.use(s.report.uid)
		u.reportIncarnation, u.reportSequence = s.report.incarnation, s.report.sequence
		b.insert(tableUse, &u)
		b.heard = append(b.heard, u.uid)
		b.memoryMoved = true
	case s.condition != nil:
		b.applyCondition(actor, s)
	case s.image != nil:
		b.applyImage(actor, s)
	case s.service != nil:
		b.applyService(actor, s)
	case s.entry != nil:
		b.applyEntry(actor, s)
	case s.key != nil:
		b.applyKey(actor, s)
	case s.token != nil:
		b.applyToken(actor, s)
	case s.audit != nil:
		b.audit = append(b.audit, s.audit)
	case s.node != nil:
		b.applyNode(actor, s)
	case s.instance != nil:
		b.applyInstance(actor, s)
	}
}

// change appends a row to the log and gives it the next revision.
func (b *batch) change(actor muster.Actor, s step, kind muster.ChangeKind, objectID string) *muster.Change {
	b.meta.head = muster.Position{Revision: b.meta.head.Revision + 1, Tag: b.tag}
	c := &muster.Change{
		Revision: b.meta.head.Revision, Epoch: b.meta.epoch, Batch: b.tag, At: b.meta.at,
		Kind: kind, ObjectID: objectID, Deleted: s.deleted, Reason: s.reason,
		Actor: actor.Name, ActorKey: actor.Key, ActorAddr: actor.Addr,
	}
	b.changes = append(b.changes, c)
	return c
}

func (b *batch) applyNode(actor muster.Actor, s step) {
	n := s.node
	c := b.change(actor, s, muster.KindNode, string(n.UID))
	before := b.view.NodeByUID(n.UID)
	if before != nil {
		c.PreviousRevision, c.PreviousStatus = before.Revision, string(before.Status)
		c.Previous = &muster.Facets{Labels: before.Labels, Role: before.Role, Schedulable: before.Schedulable}
	}
	b.meta.peers -= peerSum(before)
	if s.deleted {
		c.Node, c.Status = n, string(n.Status)
		b.delete(tableNode, n)
		b.nodes.drop(n.UID)
		return
	}
	b.meta.peers += peerSum(n)
	n.Revision = c.Revision
	if s.desired {
		n.DesiredRevision = c.Revision
		u := *b.view.use(n.UID)
		u.desiredRevision = c.Revision
		b.insert(tableUse, &u)
	}
	if n.StatusSince.IsZero() || c.PreviousStatus != string(n.Status) {
		n.StatusSince = b.meta.at
	}
	if at := b.seen(n.UID); !at.IsZero() {
		n.LastSeen = stamp(at) // else the row would take back what was flushed
	}
	c.Node, c.Status = n, string(n.Status)
	b.insert(tableNode, n)
	b.nodes.put(n.UID, n)
	b.frees = true
}

func (b *batch) applyCondition(actor muster.Actor, s step) {
	o := s.condition
	c := b.change(actor, s, muster.KindCluster, string(o.Name))
	if before := b.view.Condition(o.Name); before != nil {
		c.PreviousRevision, c.PreviousStatus = before.Revision, string(before.Status)
	}
	o.Revision = c.Revision
	c.Condition, c.Status = o, string(o.Status)
	b.insert(tableCondition, o)
	b.conditions.put(o.Name, o)
}

func (b *batch) applyImage(actor muster.Actor, s step) {
	i := s.image
	c := b.change(actor, s, muster.KindImage, i.ObjectID())
	if before := b.view.Image(i.Name); before != nil {
		c.PreviousRevision = before.Revision
	}
	i.Revision = c.Revision
	c.Image = i
	if s.deleted {
		b.delete(tableImage, i)
		b.images.drop(i.Name)
		return
	}
	b.insert(tableImage, i)
	b.images.put(i.Name, i)
	b.frees = true // those that wait for it
}

func (b *batch) applyInstance(actor muster.Actor, s step) {
	i := s.instance
	before := b.view.Instance(i.ID)
	c := b.change(actor, s, muster.KindInstance, string(i.ID))
	if before != nil {
		c.PreviousRevision, c.PreviousStatus = before.Revision, string(before.Status)
		c.Previous = &muster.Facets{Labels: before.Labels, NodeUID: before.NodeUID}
	}
	c.Instance, c.Status = i, string(i.Status)
	if s.deleted {
		b.account(before, nil)
		b.follow(actor, before, i, true)
		b.delete(tableInstance, i)
		b.instances.drop(i.ID)
		return
	}
	i.Revision = c.Revision
	if s.desired {
		i.DesiredRevision = c.Revision
		b.nudges[i.NodeUID] = Nudge{Instance: i.ID, DesiredRevision: c.Revision}
	}
	if n, ok := i.ID.Number(); ok {
		b.sequence(muster.InstanceSequence, n)
	}
	b.account(before, i)
	b.insert(tableInstance, i)
	b.instances.put(i.ID, i)
	b.follow(actor, before, i, false)
}

// sequence moves a sequence up to n.
func (b *batch) sequence(name string, n int64) {
	if n <= b.meta.sequences[name] {
		return
	}
	if b.sequences == nil {
		b.sequences = map[string]int64{}
	}
	b.meta.sequences[name], b.sequences[name] = n, n
}

// account keeps the nodes' use in step with their instances.
func (b *batch) account(before, after *muster.Instance) {
	if before != nil && before.NodeUID != "" {
		u := *b.view.use(before.NodeUID)
		u.remove(before)
		b.insert(tableUse, &u)
		b.frees = b.frees || before.Reserved && (after == nil || !after.Reserved)
	}
	if after != nil && after.NodeUID != "" {
		u := *b.view.use(after.NodeUID)
		u.add(after)
		b.insert(tableUse, &u)
	}
}

func (u *use) add(i *muster.Instance) {
	if i.Reserved {
		u.held.CPUPercent += i.CPULimit
		u.held.MemoryMB += i.MemLimitMB
		u.held.Instances++
	}
	if i.Status != muster.Terminated {
		u.rows++
	}
	u.desiredRevision = max(u.desiredRevision, i.DesiredRevision)
}

func (u *use) remove(i *muster.Instance) {
	if i.Reserved {
		u.held.CPUPercent -= i.CPULimit
		u.held.MemoryMB -= i.MemLimitMB
		u.held.Instances--
	}
	if i.Status != muster.Terminated {
		u.rows--
	}
}

// rows returns what the database has to write.
func (b *batch) rows() (*muster.Batch, error) {
	if b.broken != nil {
		return nil, b.broken
	}
	out := &muster.Batch{
		Epoch: b.meta.epoch, Term: b.meta.term, From: b.from, To: b.meta.head.Revision, Tag: b.tag,
		Requests: b.requests, Changes: b.changes,
		Nodes: b.nodes.rows(), DeletedNodes: b.nodes.gone(),
		Instances: b.instances.rows(), DeletedInstances: b.instances.gone(),
		Conditions: b.conditions.rows(),
		Images:     b.images.rows(), DeletedImages: b.images.gone(),
		Services: b.services.rows(), DeletedServices: b.services.gone(),
		Entries: b.entries.rows(), DeletedEntries: b.entries.gone(),
		Keys: b.keys.rows(), DeletedKeys: b.keys.gone(),
		Tokens: b.tokens.rows(), DeletedTokens: b.tokens.gone(),
		Audit: b.audit,
	}
	out.Sequences = b.sequences
	for _, c := range b.changes {
		if err := c.Encode(); err != nil {
			return nil, err
		}
	}
	return out, nil
}
