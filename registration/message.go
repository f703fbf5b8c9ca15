package registration

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/muster-cloud/muster"
)

// Reason is why an entry is gone.
type Reason string

// The reasons, as they are in markers.
const (
	Expired Reason = "MaxAge" // it was not refreshed
	Removed Reason = "Remove" // somebody took it out
	Purged  Reason = "Purge"  // it is not there any more, and nothing says why
)

// Message is what the stream holds on a subject.
type Message struct {
	Subject  string
	Sequence uint64
	At       time.Time // when the server got it
	Origin   string    // the uid of the cluster that says it wrote it; "": not a muster. Never proof
	TTL      string    // the header, as it is
	Data     []byte    // the entry as it is; nil for a marker
	// Entry is what Data says; nil for a marker, and for what is no entry: Err says why.
	Entry *muster.Registration
	// Gone is set for a marker.
	Gone Reason
	Err  error
}

// read judges a message of the stream.
func read(subject string, header nats.Header, data []byte) Message {
	m := Message{Subject: subject, Origin: header.Get(headerOrigin), TTL: header.Get(headerTTL)}
	switch reason := Reason(header.Get(headerReason)); {
	case reason == Expired || reason == Removed || reason == Purged:
		m.Gone = reason
		return m
	case reason != "" && len(data) == 0:
		// Nothing is there: that much is sure.
		m.Gone, m.Err = Removed, fmt.Errorf("marker with the unknown reason %.80q", string(reason))
		return m
	}
	m.Data = data
	m.Entry, m.Err = Decode(subject, data)
	return m
}
