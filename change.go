package muster

import (
	"encoding/json"
	"fmt"
	"time"
)

// ChangeKind is what kind of thing a change is about.
type ChangeKind string

// The kinds of changes.
const (
	KindNode         ChangeKind = "NODE"
	KindInstance     ChangeKind = "INSTANCE"
	KindCluster      ChangeKind = "CLUSTER"
	KindImage        ChangeKind = "IMAGE"
	KindService      ChangeKind = "SERVICE"
	KindRegistration ChangeKind = "REGISTRATION"
	// Those of keys and join tokens are the server's own: no query or subscription gives them.
	KindKey   ChangeKind = "KEY"
	KindToken ChangeKind = "TOKEN"
)

// Change is one row of the change log: the whole object after it as JSON,
// without volatile fields and secrets. Every change has a revision of its own;
// those of one commit share its batch tag.
type Change struct {
	Revision         int64      `gorm:"column:revision;primaryKey;autoIncrement:false" json:"revision"`
	Epoch            string     `gorm:"-" json:"-"`
	Batch            string     `gorm:"column:batch" json:"-"`
	At               time.Time  `gorm:"column:at" json:"at"`
	Kind             ChangeKind `gorm:"column:kind" json:"kind"`
	ObjectID         string     `gorm:"column:object_id" json:"objectId"`
	Object           string     `gorm:"column:object" json:"-"`
	Deleted          bool       `gorm:"column:deleted" json:"deleted"`
	PreviousRevision int64      `gorm:"column:previous_revision" json:"previousRevision"`
	PreviousStatus   string     `gorm:"column:previous_status" json:"previousStatus"`
	Previous         *Facets    `gorm:"column:previous;serializer:json" json:"-"`
	Status           string     `gorm:"column:status" json:"status"`
	Reason           string     `gorm:"column:reason" json:"reason"`
	Actor            string     `gorm:"column:actor" json:"actor"`
	ActorKey         KeyID      `gorm:"column:actor_key" json:"actorKey,omitempty"`
	ActorAddr        string     `gorm:"column:actor_addr" json:"actorAddr,omitempty"`

	// Node, Instance, Condition or Image is the decoded object; shared, not to be changed.
	Node      *Node      `gorm:"-" json:"-"`
	Instance  *Instance  `gorm:"-" json:"-"`
	Condition *Condition `gorm:"-" json:"-"`
	Image     *Image     `gorm:"-" json:"-"`
	Service   *Service   `gorm:"-" json:"-"`
	Entry     *Entry     `gorm:"-" json:"-"`
	Key       *AccessKey `gorm:"-" json:"-"`
	Token     *JoinToken `gorm:"-" json:"-"`
}

// Internal reports whether the change is for the servers of the cluster alone.
func (c *Change) Internal() bool { return c.Kind == KindKey || c.Kind == KindToken }

// Facets is what filters look at, as it was before a change: by it a watcher
// learns that an object has left its filter. Nil when the object is new.
type Facets struct {
	Labels      Map      `json:"labels,omitempty"`
	Role        NodeRole `json:"role,omitempty"`
	Schedulable bool     `json:"schedulable,omitempty"`
	NodeUID     NodeUID  `json:"nodeUid,omitempty"`
	// Health is that of a service.
	Health ServiceHealth `json:"health,omitempty"`
}

// TableName is the table that holds the change log.
func (Change) TableName() string { return "changes" }

// Cursor is the place after this change.
func (c *Change) Cursor() Cursor {
	return Cursor{Epoch: c.Epoch, Position: Position{Revision: c.Revision, Tag: c.Batch}}
}

// Encode fills Object from Node, Instance, Condition or Image.
func (c *Change) Encode() error {
	var object any
	switch c.Kind {
	case KindNode:
		object = c.Node
	case KindInstance:
		object = c.Instance
	case KindCluster:
		object = c.Condition
	case KindImage:
		object = c.Image
	case KindService:
		object = c.Service
	case KindRegistration:
		object = c.Entry
	case KindKey:
		object = c.Key
	case KindToken:
		object = c.Token
	default:
		return nil
	}
	b, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", c.Kind, c.ObjectID, err)
	}
	c.Object = string(b)
	return nil
}

// Decode fills Node, Instance, Condition or Image from Object.
func (c *Change) Decode() error {
	var err error
	switch c.Kind {
	case KindNode:
		c.Node = new(Node)
		err = json.Unmarshal([]byte(c.Object), c.Node)
	case KindInstance:
		c.Instance = new(Instance)
		err = json.Unmarshal([]byte(c.Object), c.Instance)
	case KindCluster:
		c.Condition = new(Condition)
		err = json.Unmarshal([]byte(c.Object), c.Condition)
	case KindImage:
		c.Image = new(Image)
		err = json.Unmarshal([]byte(c.Object), c.Image)
	case KindService:
		c.Service = new(Service)
		err = json.Unmarshal([]byte(c.Object), c.Service)
	case KindRegistration:
		c.Entry = new(Entry)
		err = json.Unmarshal([]byte(c.Object), c.Entry)
	case KindKey:
		c.Key = new(AccessKey)
		err = json.Unmarshal([]byte(c.Object), c.Key)
	case KindToken:
		c.Token = new(JoinToken)
		err = json.Unmarshal([]byte(c.Object), c.Token)
	}
	if err != nil {
		return fmt.Errorf("decode change %d of %s %s: %w", c.Revision, c.Kind, c.ObjectID, err)
	}
	return nil
}

// EventType is what an event of a subscription is.
type EventType string

// The types of events, as the schema describes them.
const (
	EventPresent  EventType = "PRESENT"
	EventSynced   EventType = "SYNCED"
	EventChange   EventType = "CHANGE"
	EventProgress EventType = "PROGRESS"
)

// Event is what a subscription delivers. Change is never nil: SYNCED and
// PROGRESS have one with a revision only.
type Event struct {
	*Change
	Type EventType
	// Left says that the object no longer matches the filter, or is gone.
	Left bool
	// Resume is the cursor to resume from after it; nil on PRESENT.
	Resume *Cursor
}

// Cursor is Resume: that of the change alone would be there on PRESENT too.
func (e *Event) Cursor() *Cursor { return e.Resume }
