package muster

import "time"

// AuditDone is the outcome of what was done; of what was refused, it is the error's code.
const AuditDone = "DONE"

// AuditEntry is an attempt to change something: who, what, when, from where and how
// it ended. Beats and reports of nodes are none.
type AuditEntry struct {
	ID      int64     `gorm:"column:id;primaryKey;autoIncrement:true"`
	At      time.Time `gorm:"column:at"`
	Key     KeyID     `gorm:"column:key"` // empty: no key, or none that is known
	Name    string    `gorm:"column:name"`
	Addr    string    `gorm:"column:addr"`
	Action  string    `gorm:"column:action"` // the mutation's field, or the route
	Target  string    `gorm:"column:target"` // ids and names in it; no secret
	Outcome string    `gorm:"column:outcome"`
	Reason  string    `gorm:"column:reason"` // what a refusal said
	// Count is how many attempts of the kind this row stands for: refusals in a flood
	// are counted together.
	Count int `gorm:"column:count"`
}

// TableName is the table that holds the audit.
func (AuditEntry) TableName() string { return "audit" }

// AuditFilter selects entries; nil fields and a nil filter select all.
type AuditFilter struct {
	Key     *string    `json:"key,omitempty"`
	Action  *string    `json:"action,omitempty"`
	Target  *string    `json:"target,omitempty"`
	Refused *bool      `json:"refused,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
}

// AuditEdge is an entry on a page.
type AuditEdge struct {
	Cursor string
	Node   *AuditEntry
}

// AuditConnection is a page of the audit, newest first.
type AuditConnection struct {
	Edges    []*AuditEdge
	PageInfo *PageInfo
}
