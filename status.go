package muster

import "slices"

// NodeStatus is what the server observed of a node.
type NodeStatus string

// The statuses of a node.
const (
	Healthy   NodeStatus = "HEALTHY"
	Unhealthy NodeStatus = "UNHEALTHY"
	Pruned    NodeStatus = "PRUNED"
	Removed   NodeStatus = "REMOVED"
)

// InstanceStatus is what was observed of an instance.
type InstanceStatus string

// The statuses of an instance.
const (
	Pending      InstanceStatus = "PENDING"
	Provisioning InstanceStatus = "PROVISIONING"
	Running      InstanceStatus = "RUNNING"
	Stopping     InstanceStatus = "STOPPING"
	Stopped      InstanceStatus = "STOPPED"
	Failed       InstanceStatus = "FAILED"
	Lost         InstanceStatus = "LOST"
	Unknown      InstanceStatus = "UNKNOWN"
	Terminating  InstanceStatus = "TERMINATING"
	Terminated   InstanceStatus = "TERMINATED"
)

// DesiredStatus is what a person asked for.
type DesiredStatus string

// The desired statuses.
const (
	WantRunning    DesiredStatus = "RUNNING"
	WantStopped    DesiredStatus = "STOPPED"
	WantTerminated DesiredStatus = "TERMINATED"
)

// NodeStatuses lists every status of a node.
func NodeStatuses() []NodeStatus { return []NodeStatus{Healthy, Unhealthy, Pruned, Removed} }

// InstanceStatuses lists every status of an instance.
func InstanceStatuses() []InstanceStatus {
	return []InstanceStatus{
		Pending, Provisioning, Running, Stopping, Stopped, Failed, Lost, Unknown, Terminating, Terminated,
	}
}

// next lists the statuses that may follow each one. The empty status is an
// object that does not exist yet.
func (s NodeStatus) next() []NodeStatus {
	switch s {
	case "":
		return []NodeStatus{Healthy}
	case Healthy:
		return []NodeStatus{Unhealthy, Removed}
	case Unhealthy:
		return []NodeStatus{Healthy, Pruned, Removed}
	case Pruned:
		return []NodeStatus{Healthy, Removed}
	case Removed: // forgotten: its uid is no longer refused
		return []NodeStatus{Pruned}
	}
	return nil
}

// Straight to TERMINATED goes what nobody has to take down: what never was on a node, or
// was on one that is gone, for good when an operator says so.
func (s InstanceStatus) next() []InstanceStatus {
	switch s {
	case "":
		return []InstanceStatus{Pending, Provisioning, Unknown}
	case Pending:
		return []InstanceStatus{Provisioning, Failed, Terminated}
	case Provisioning:
		return []InstanceStatus{Running, Stopping, Stopped, Failed, Lost, Terminating, Terminated}
	case Running:
		return []InstanceStatus{Provisioning, Stopping, Stopped, Failed, Lost, Terminating, Terminated}
	case Stopping:
		return []InstanceStatus{Provisioning, Stopped, Failed, Lost, Terminating, Terminated}
	case Stopped:
		return []InstanceStatus{Provisioning, Lost, Terminating, Terminated}
	case Failed:
		return []InstanceStatus{Provisioning, Lost, Terminating, Terminated}
	case Lost:
		return []InstanceStatus{Provisioning, Running, Stopping, Stopped, Failed, Terminating, Terminated}
	case Unknown:
		return []InstanceStatus{Provisioning, Running, Stopping, Stopped, Failed, Lost, Terminating, Terminated}
	case Terminating:
		return []InstanceStatus{Terminated}
	}
	return nil
}

// MayBecome reports whether a node in status s may go to t; staying is always
// allowed, and "" is a node that does not exist yet.
func (s NodeStatus) MayBecome(t NodeStatus) bool {
	return (s == t && s != "") || slices.Contains(s.next(), t)
}

// MayBecome reports whether an instance in status s may go to t; staying is
// always allowed, and "" is an instance that does not exist yet.
func (s InstanceStatus) MayBecome(t InstanceStatus) bool {
	return (s == t && s != "") || slices.Contains(s.next(), t)
}
