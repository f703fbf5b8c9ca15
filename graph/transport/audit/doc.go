// Package audit holds the conformance tests of the transports against JavaScript:
// the audits of graphql-http, and the client graphql-ws. The tests install the
// pinned npm packages into a folder of their own; they need Node.js and npm, and
// whatever place npm is set up to fetch from.
package audit
