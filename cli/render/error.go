package render

import "fmt"

// Kind is why a file was not rendered.
type Kind string

// The kinds of failure.
const (
	BadTemplate  Kind = "template" // it cannot be read, parsed or executed
	Refused      Kind = "refused"  // by the guard, or the answer is not complete
	CheckFailed  Kind = "check"
	ReloadFailed Kind = "reload"
	WriteFailed  Kind = "write"
)

// Error says why a file is still what it was.
type Error struct {
	Kind   Kind
	File   string // that was to be rendered, or a template
	Text   string // what is wrong, and what to do
	Output string // the end of what a command has printed
	Cause  error
}

func (e *Error) Error() string { return e.File + ": " + e.Text }
func (e *Error) Unwrap() error { return e.Cause }

func failure(kind Kind, file string, cause error, format string, args ...any) *Error {
	return &Error{Kind: kind, File: file, Text: fmt.Sprintf(format, args...), Cause: cause}
}

// cannotWrite is a file, or what is kept beside it, that cannot be written.
func cannotWrite(file string, cause error) *Error {
	return failure(WriteFailed, file, cause, "it cannot be written: %s; it is left as it was", cause)
}
