// Package console serves the page at /playground/: GraphiQL, built from ui/ and
// embedded, so that it works on a machine without internet.
//
// It promises that the page loads nothing from another origin and that its
// content security policy forbids it to. The files are for everybody; the page can do
// what the API behind it lets its caller do, nothing more. Where keys are asked for it
// signs in with a one-time link or a pasted key, both exchanged for a session that one
// tab keeps, in sessionStorage: it is never in the address, in localStorage or in a log.
// It is no defence against an extension of the browser or somebody at its keyboard.
package console
