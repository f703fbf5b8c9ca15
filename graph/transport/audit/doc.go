// Package audit holds what the API is measured with from outside: the audits of the
// npm package graphql-http, the client graphql-ws, and a corpus of bombs. The tests
// here run the first two against a real server in a process of its own; they install
// the pinned npm packages into a folder of their own, and need Node.js and npm, and
// whatever place npm is set up to fetch from.
package audit
