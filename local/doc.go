// Package local is how programs find the server of their own machine, and the file with
// the access key of its first start: a server announces itself in a small file, and
// takes that away when it stops.
//
// It promises that what Servers returns was announced by a process that still runs, in
// this network namespace, and by somebody whom the caller has to trust anyway: itself,
// root, or for root whoever root gave /run/muster to. So a key is not sent to another
// program that took the port of a server that is gone.
//
// It does NOT read keys: whether the caller may is for the file system to say. A server
// that was killed leaves its file behind, which counts no more and is taken away when
// the next one announces itself.
package local
