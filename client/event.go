package client

import (
	"time"

	"github.com/muster-cloud/muster"
)

// EventRestart is an event that the client itself adds: what a watch delivered
// so far is void, and the present state follows from its beginning. It comes
// when a connection was lost before the present state was complete, and when the
// log no longer reached back to the watch's cursor (WatchOptions.StartOver).
const EventRestart muster.EventType = "RESTART"

// Event is one event of a watch. Which parts are there depends on its type, as
// the schema says of HealthChange, NodeChange, InstanceChange and ServiceChange.
type Event struct {
	Type           muster.EventType  `json:"type"`
	Cursor         string            `json:"cursor,omitempty"` // resume after it; empty on PRESENT and RESTART
	Revision       int64             `json:"revision"`
	At             time.Time         `json:"at,omitzero"`
	Kind           muster.ChangeKind `json:"kind,omitempty"`     // empty on SYNCED, PROGRESS and RESTART
	ObjectID       string            `json:"objectId,omitempty"` // an instance's id, a node's uid, or a condition's name
	Reason         string            `json:"reason,omitempty"`
	Actor          string            `json:"actor,omitempty"`
	PreviousStatus string            `json:"previousStatus,omitempty"`
	Status         string            `json:"status,omitempty"`
	Left           bool              `json:"left,omitempty"` // it no longer matches the filter, or is gone
	Node           *Node             `json:"node,omitempty"`
	Instance       *Instance         `json:"instance,omitempty"`
	Service        *Service          `json:"service,omitempty"`
	Registration   *Entry            `json:"registration,omitempty"`
	Condition      *Condition        `json:"condition,omitempty"` // of the cluster itself
}

// name fills ObjectID where the subscription does not carry it.
func (e *Event) name() {
	switch {
	case e.ObjectID != "":
	case e.Registration != nil:
		e.ObjectID = "registration/" + e.Registration.Key
	case e.Service != nil:
		e.ObjectID = string(e.Service.ID)
	case e.Instance != nil:
		e.ObjectID = string(e.Instance.ID)
	case e.Node != nil:
		e.ObjectID = string(e.Node.UID)
	}
}
