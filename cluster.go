package muster

import "time"

// HealthStatus is how the cluster is, in a word.
type HealthStatus string

// The statuses of a cluster.
const (
	ClusterHealthy  HealthStatus = "HEALTHY"
	ClusterDegraded HealthStatus = "DEGRADED"
)

// ClusterHealth is how the cluster is.
type ClusterHealth struct {
	Status     HealthStatus
	Nodes      []*StatusCount
	Instances  []*StatusCount
	Conditions []*Condition
	Brake      *Condition
	Revision   int64
}

// StatusCount is how many objects are in a status.
type StatusCount struct {
	Status string
	Count  int
}

// ServerInfo is what a server is and where its history stands.
type ServerInfo struct {
	Version           string
	ClusterUID        string
	ClusterShortID    string
	Epoch             string
	Revision          int64
	Cursor            Cursor
	OldestRevision    int64
	StartedAt         time.Time
	HeartbeatInterval time.Duration
	UnhealthyAfter    time.Duration
	PruneAfter        time.Duration
}

// HealthFilter selects changes of health; all given parts must match. NodeID
// is a node's id or uid, resolved by the registry into NodeUID.
type HealthFilter struct {
	Kinds      []ChangeKind `json:"kinds,omitempty"`
	NodeID     *string      `json:"nodeId,omitempty"`
	InstanceID *InstanceID  `json:"instanceId,omitempty"`
	ServiceID  *ServiceID   `json:"serviceId,omitempty"`
	NodeUID    NodeUID      `json:"-"`
}
