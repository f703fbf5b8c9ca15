package muster

import (
	"errors"
	"fmt"
)

// Code is the kind of an Error; the list is closed and is the same in the
// schema (ErrorCode), on HTTP and in the client.
type Code string

// The codes. What each one means for a caller is said in schema.graphqls.
const (
	Invalid           Code = "INVALID"
	Unauthenticated   Code = "UNAUTHENTICATED"
	Forbidden         Code = "FORBIDDEN"
	NotFound          Code = "NOT_FOUND"
	UnknownNode       Code = "UNKNOWN_NODE"
	AlreadyExists     Code = "ALREADY_EXISTS"
	DuplicateIdentity Code = "DUPLICATE_IDENTITY"
	Superseded        Code = "SUPERSEDED"
	Conflict          Code = "CONFLICT"
	NoCapacity        Code = "NO_CAPACITY"
	Limit             Code = "LIMIT"
	Unavailable       Code = "UNAVAILABLE"
	Compacted         Code = "COMPACTED"
	Internal          Code = "INTERNAL"
)

// Codes lists every code, in the schema's order.
func Codes() []Code {
	return []Code{
		Invalid, Unauthenticated, Forbidden, NotFound, UnknownNode, AlreadyExists, DuplicateIdentity,
		Superseded, Conflict, NoCapacity, Limit, Unavailable, Compacted, Internal,
	}
}

// Error is the one error type that callers outside see. Its message says what
// is wrong with which thing and what to do next.
type Error struct {
	Code    Code
	Message string
	Field   string         // INVALID: the input's field
	Details map[string]any // further `extensions`, such as NO_CAPACITY's nodes
	Err     error          // the cause; for the log, never sent
}

// Errorf makes an Error; a %w operand becomes its cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// InvalidField makes an INVALID error about one field of an input.
func InvalidField(field, format string, args ...any) *Error {
	return &Error{Code: Invalid, Field: field, Message: field + ": " + fmt.Sprintf(format, args...)}
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf returns the code of the first Error in err's chain, INTERNAL when there
// is none, and "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return Internal
}

// ErrOutcomeUnknown is what a store returns from a commit of which it could not
// learn whether it happened: memory has to be loaded again before anything else.
var ErrOutcomeUnknown = errors.New("the outcome of the commit is unknown")
