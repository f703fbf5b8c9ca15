package transport

import (
	"encoding/json"

	"github.com/vektah/gqlparser/v2/gqlerror"
)

// kind is what the writer does with a message.
type kind int

const (
	plain    kind = iota // writes it as it is
	result               // writes the operation's one result and completes it
	failure              // writes the operation's error, which ends it
	joined               // takes a subscription over
	event                // writes an event of a subscription and says so
	finished             // completes a subscription
)

// message is what the reader and the operations hand to the writer.
type message struct {
	kind    kind
	op      *operation
	body    []byte
	member  *member
	written chan<- struct{} // of an event; there is room for one
}

func acknowledgement() message { return message{body: []byte(`{"type":"connection_ack"}`)} }

// pong answers a ping with its own payload.
func pong(payload json.RawMessage) message {
	if len(payload) == 0 {
		return message{body: []byte(`{"type":"pong"}`)}
	}
	b := append([]byte(`{"type":"pong","payload":`), payload...)
	return message{body: append(b, '}')}
}

// failed is the error of an operation that never began.
func failed(quotedID []byte, errs gqlerror.List) message {
	return message{body: appendMessage(nil, quotedID, "error", encodeJSON(errs))}
}

// appendMessage writes a message about an operation; complete has no payload.
func appendMessage(b, quotedID []byte, name string, payload []byte) []byte {
	b = append(append(b, `{"id":`...), quotedID...)
	b = append(append(append(b, `,"type":"`...), name...), '"')
	if payload != nil {
		b = append(append(b, `,"payload":`...), payload...)
	}
	return append(b, '}')
}
