package muster

import "time"

// ConditionName names something out of the ordinary about the cluster itself.
type ConditionName string

// The conditions that are part of the state: their turns are changes of kind CLUSTER.
const (
	// Brake: so many nodes fell silent at once that the fault is more likely here.
	Brake ConditionName = "BRAKE"
	// ExpiryPostponed: silence does not count at present, because this server could not have heard a beat.
	ExpiryPostponed ConditionName = "EXPIRY_POSTPONED"
)

// The conditions that are seen only while they hold.
const (
	// StartupGrace: the server has just started.
	StartupGrace ConditionName = "STARTUP_GRACE"
	// ReadOnly: mutations are refused.
	ReadOnly ConditionName = "READ_ONLY"
	// FeedUnreachable: the discovery feed cannot be written to or followed.
	FeedUnreachable ConditionName = "FEED_UNREACHABLE"
	// FeedFlawed: the discovery feed can be reached, and does not take every entry, or has fewer replicas than it should.
	FeedFlawed ConditionName = "FEED_FLAWED"
	// Insecure: other machines reach the server without TLS, because it was started so.
	Insecure ConditionName = "INSECURE"
)

// ConditionStatus is whether a condition holds.
type ConditionStatus string

// The statuses of a condition.
const (
	Holds ConditionStatus = "HOLDS"
	Clear ConditionStatus = "CLEAR"
)

// Condition is something out of the ordinary about the cluster itself.
type Condition struct {
	Name   ConditionName   `gorm:"column:name;primaryKey" json:"name"`
	Status ConditionStatus `gorm:"column:status" json:"status"`
	Reason string          `gorm:"column:reason" json:"reason"`
	// Since is when it last turned.
	Since time.Time `gorm:"column:since" json:"since"`
	// Until is when it ends by itself at the latest, if that is known.
	Until *time.Time `gorm:"column:until" json:"until"`
	// Revision is that of its newest change.
	Revision int64 `gorm:"column:revision" json:"revision"`
}

// TableName is the table that holds conditions.
func (Condition) TableName() string { return "conditions" }

// Evidence is why an object is not healthy: what was observed.
type Evidence struct {
	Reason string
	// LastBeat is when the node was last heard of; nil: never, or it does not matter.
	LastBeat *time.Time
	// Silence is the span since then.
	Silence *time.Duration
	// MissedBeats is how many beats were due in it.
	MissedBeats *int
	// ClockSkew is how far the node's clock was ahead of the server's at its last beat; the way counts as skew.
	ClockSkew *time.Duration
	// ExitCode is the status that the instance's payload ended with.
	ExitCode *int
}
