package muster

import "time"

// Request is the record of a requestId: unique per principal, kept for 24 h.
type Request struct {
	Principal string    `gorm:"column:principal;primaryKey"`
	RequestID string    `gorm:"column:request_id;primaryKey"`
	Hash      string    `gorm:"column:hash"` // of the input
	ObjectID  string    `gorm:"column:object_id"`
	At        time.Time `gorm:"column:at"`
}

// TableName is the table that holds requests.
func (Request) TableName() string { return "requests" }

// Batch is what one database transaction writes: the final state of each key,
// and a change row for each step on the way. From and To are the revisions
// before and after it.
type Batch struct {
	Epoch            string
	Term             int64
	From, To         int64
	Tag              string
	Nodes            []*Node
	Instances        []*Instance
	DeletedInstances []InstanceID
	DeletedNodes     []NodeUID
	Conditions       []*Condition
	Images           []*Image
	DeletedImages    []string // by name
	Services         []*Service
	DeletedServices  []ServiceID
	Entries          []*Entry
	DeletedEntries   []string // by key
	Keys             []*AccessKey
	DeletedKeys      []KeyID
	Tokens           []*JoinToken
	DeletedTokens    []TokenID
	Audit            []*AuditEntry
	Requests         []*Request
	// Sequences are the new values of those that moved.
	Sequences map[string]int64
	Changes   []*Change
}

// State is everything that a store holds but the log: what memory is loaded
// with at start. Nodes include hidden ones (pruned, removed).
type State struct {
	ClusterUID string // 32 hex digits, issued when the database was created
	Epoch      string
	Term       int64
	Head       Position // the newest revision
	Floor      Position // the oldest that can be resumed from
	Nodes      []*Node
	Instances  []*Instance
	Conditions []*Condition
	Images     []*Image
	Services   []*Service
	Entries    []*Entry
	Keys       []*AccessKey
	Tokens     []*JoinToken
	Requests   []*Request
	Sequences  map[string]int64
}

// InstanceSequence is the name of the sequence of instance ids.
const InstanceSequence = "instance"

// Retention says how much of the change log is kept. Whichever limit is reached
// first counts.
type Retention struct {
	Keep      int           // changes; 0: 100,000; negative: no limit
	MaxAge    time.Duration // 0: 72 h; negative: no limit
	Now       time.Time     // what MaxAge is counted from; zero: now
	BatchRows int           // changes looked at in one transaction; 0: 500
	// Raise is told the floor before it is raised, and so before any change goes;
	// nil: nobody is.
	Raise func(Position)
}
