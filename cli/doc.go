// Package cli is the terminal's side of muster: one cobra command a noun and
// verb, over the typed client, and the commands that start a server, an agent or
// both.
//
// Scripts can rely on the exit codes (exit.go), on json and yaml output, whose
// field names are those of schema.graphqls, and on standard output carrying
// results only: progress, warnings and errors go to standard error. Tables are
// for people and may change. Every setting is a flag and a MUSTER_ variable
// (setting.go). The package decides nothing about the cluster: it asks.
package cli
