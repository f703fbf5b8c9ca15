// Package console serves the page at /playground/: GraphiQL, built from ui/ and
// embedded, so that it works on a machine without internet.
//
// It promises that the page loads nothing from another origin and that its
// content security policy forbids it to. It holds no state and asks for no key;
// the page can do what the API behind it lets its caller do, nothing more.
package console
