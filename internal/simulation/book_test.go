package simulation_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// book is everything that the change log ever said, read before compaction takes
// it, with what it makes of it; and what callers were told.
type book struct {
	c *cluster

	mu        sync.Mutex
	rows      []*muster.Change // that of revision k is rows[k-1]
	newest    map[string]*muster.Change
	nodes     map[muster.NodeUID]*muster.Node
	instances map[muster.InstanceID]*muster.Instance
	services  map[muster.ServiceID]*muster.Service
	braking   bool
	acks      []ack
	named     map[string]bool // disks of which the registry named a machine as terminated
	launches  map[string]int  // by machine
}

// ack is an object that a caller was told is so.
type ack struct {
	what, id string
	revision int64
	object   string
}

func newBook(c *cluster) *book {
	return &book{
		c: c, newest: map[string]*muster.Change{}, nodes: map[muster.NodeUID]*muster.Node{},
		instances: map[muster.InstanceID]*muster.Instance{}, services: map[muster.ServiceID]*muster.Service{}, named: map[string]bool{}, launches: map[string]int{},
	}
}

// read reads on to the end of the log, unless the server ends meanwhile.
func (b *book) read(l *life) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		page, err := l.store.ChangesAfter(context.Background(), int64(len(b.rows)), 500)
		if err != nil {
			if l.ctx.Err() == nil {
				b.c.fault("the log after %d cannot be read: %v", len(b.rows), err)
			}
			return
		}
		for _, row := range page {
			if row.Revision != int64(len(b.rows))+1 {
				b.c.fault("the log goes on at %d after %d", row.Revision, len(b.rows))
				return
			}
			b.addLocked(row)
		}
		if len(page) < 500 {
			return
		}
	}
}

// continues judges that a server begins where the last one ended.
func (b *book) continues(l *life) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rows) == 0 {
		return
	}
	last := b.rows[len(b.rows)-1]
	at, found, err := l.store.PositionAt(context.Background(), last.Revision)
	if err != nil || !found || at.Tag != last.Batch {
		b.c.fault("revision %d was %s, and after a restart it is %+v (%t, %v)", last.Revision, last.Batch, at, found, err)
	}
}

func (b *book) addLocked(row *muster.Change) {
	before := b.newest[row.ObjectID]
	b.judgeStepLocked(row, before)
	b.rows = append(b.rows, row)
	b.newest[row.ObjectID] = row
	switch row.Kind {
	case muster.KindCluster:
		if row.Condition.Name == muster.Brake {
			b.braking = row.Condition.Status == muster.Holds
		}
	case muster.KindNode:
		if b.nodes[row.Node.UID] = row.Node; row.Deleted {
			delete(b.nodes, row.Node.UID)
		}
	case muster.KindInstance:
		was := b.instances[row.Instance.ID]
		if b.instances[row.Instance.ID] = row.Instance; row.Deleted {
			delete(b.instances, row.Instance.ID)
			return
		}
		b.judgeInstanceLocked(row, was)
	case muster.KindService:
		was := b.services[row.Service.ID]
		if b.services[row.Service.ID] = row.Service; row.Deleted {
			delete(b.services, row.Service.ID)
			return
		}
		b.judgeServiceLocked(row, was)
	case muster.KindRegistration:
		if !row.Deleted {
			b.judgeEntryLocked(row)
		}
	}
}

// judgeStepLocked judges that a row follows the object's last one, legally, and
// that time does not go back.
func (b *book) judgeStepLocked(row, before *muster.Change) {
	if n := len(b.rows); n > 0 && row.At.Before(b.rows[n-1].At) {
		b.c.fault("time goes back at revision %d", row.Revision)
	}
	var revision int64
	var status string
	if before != nil && !before.Deleted {
		revision, status = before.Revision, before.Status
	}
	if row.PreviousRevision != revision || row.PreviousStatus != status {
		b.c.fault("revision %d of %s follows %d %q, but the one before is %d %q", row.Revision, row.ObjectID, row.PreviousRevision, row.PreviousStatus, revision, status)
	}
	legal := row.Deleted
	switch row.Kind {
	case muster.KindNode:
		legal = legal || muster.NodeStatus(status).MayBecome(row.Node.Status)
		if row.Node.Status == muster.Pruned && status == string(muster.Unhealthy) && !row.Node.Forgotten && b.braking {
			b.c.fault("%s is pruned at revision %d while the brake holds", row.Node.ID, row.Revision)
		}
	case muster.KindInstance:
		legal = legal || muster.InstanceStatus(status).MayBecome(row.Instance.Status)
	case muster.KindService:
		legal = legal || muster.ServiceStatus(status).MayBecome(row.Service.Status)
	case muster.KindRegistration:
		legal = true
	case muster.KindCluster:
		legal = status != row.Status
	}
	if !legal {
		b.c.fault("revision %d of %s went from %q to %q", row.Revision, row.ObjectID, status, row.Status)
	}
}

// judgeInstanceLocked judges that an instance stays where it is and counts up,
// that nobody shares its address, and that a promise fits.
func (b *book) judgeInstanceLocked(row *muster.Change, was *muster.Instance) {
	i := row.Instance
	if was != nil && (was.NodeUID != "" && was.NodeUID != i.NodeUID || was.Generation > i.Generation || was.DesiredRevision > i.DesiredRevision) {
		b.c.fault("revision %d: %s was %+v and is %+v", row.Revision, i.ID, was, i)
	}
	if i.Addr != "" && (was == nil || was.Addr == "") {
		for _, other := range b.instances {
			if other.ID != i.ID && other.Addr == i.Addr && other.Status != muster.Terminated {
				b.c.fault("%s gets the address %s that %s has", i.ID, i.Addr, other.ID)
			}
		}
	}
	fact := row.Actor != "muster" && b.isNodeLocked(row.Actor) // what an agent observed need not fit: it is so
	if i.Reserved && (was == nil || !was.Reserved) && !fact {
		b.judgePromiseLocked(row.Revision, i)
	}
}

func (b *book) isNodeLocked(actor string) bool {
	for _, n := range b.nodes {
		if actor == "node "+string(n.ID) {
			return true
		}
	}
	return false
}

func (b *book) judgePromiseLocked(revision int64, i *muster.Instance) {
	n := b.nodes[i.NodeUID]
	if n == nil || n.Status != muster.Healthy {
		b.c.fault("revision %d promises %s a place on %s, which is %+v", revision, i.ID, i.NodeUID, n)
		return
	}
	var cpu, memory int
	for _, other := range b.instances {
		if other.Reserved && other.NodeUID == i.NodeUID {
			cpu, memory = cpu+other.CPULimit, memory+other.MemLimitMB
		}
	}
	if total := (scheduler.Options{}).Total(n); cpu > total.CPUPercent || memory > total.MemoryMB {
		b.c.fault("revision %d: %s with %+v promises %d %% and %d MiB", revision, n.ID, total, cpu, memory)
	}
}

// told notes what a caller was told.
func (b *book) told(what, id string, revision int64, object any) {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.acks = append(b.acks, ack{what, id, revision, string(text)})
}

// keepsWord judges that everything that anybody was told is in the log.
func (b *book) keepsWord() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.acks {
		if a.revision > int64(len(b.rows)) {
			b.c.fault("%s of %s was answered with revision %d, and the log ends at %d", a.what, a.id, a.revision, len(b.rows))
			continue
		}
		if row := b.rows[a.revision-1]; row.ObjectID != a.id || row.Object != a.object {
			b.c.fault("%s of %s was answered with\n%s\nand revision %d of the log is %s\n%s", a.what, a.id, a.object, a.revision, row.ObjectID, row.Object)
		}
	}
	b.c.note("%d answers are in the log of %d changes", len(b.acks), len(b.rows))
	b.acks = nil
}

// name notes machines that the registry named as terminated.
func (b *book) name(n *node, machines []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range machines {
		b.named[n.name+"/"+diskOf(m)] = true
	}
}

// removing judges that what an agent removes was named.
func (b *book) removing(n *node, machine string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.named[n.name+"/"+diskOf(machine)] {
		b.c.fault("%s removes %s, and nobody named it", n.name, machine)
	}
}

// launched judges that a generation is launched once.
func (b *book) launched(n *node, machine string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.launches[machine]++; b.launches[machine] > 1 {
		b.c.fault("%s launches %s once more", n.name, machine)
	}
}

func (b *book) head() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(len(b.rows))
}

// since returns the rows after a revision.
func (b *book) since(revision int64) []*muster.Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rows[revision:len(b.rows):len(b.rows)]
}

// objects folds the log up to a revision into the JSON of every object.
func (b *book) objects(upTo int64) map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]string{}
	for _, row := range b.rows[:upTo] {
		if out[row.ObjectID] = row.Object; row.Deleted {
			delete(out, row.ObjectID)
		}
	}
	return out
}

// namedRightly judges that what was named as terminated was.
func (b *book) namedRightly() {
	b.mu.Lock()
	defer b.mu.Unlock()
	ended := map[string]bool{}
	for _, row := range b.rows {
		if i := row.Instance; i != nil && (i.Status == muster.Terminating || i.Status == muster.Terminated) {
			ended[diskOf(i.Machine)] = true
		}
	}
	for name := range b.named {
		if _, disk, _ := strings.Cut(name, "/"); !ended[disk] && !strings.HasPrefix(disk, "svc-") {
			b.c.fault("the registry named %s, and it was never terminated", name)
		}
	}
}

// diskOf is a machine's name without its generation.
func diskOf(machine string) string { return machine[:max(strings.LastIndexByte(machine, '-'), 0)] }
