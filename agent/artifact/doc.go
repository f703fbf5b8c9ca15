// Package artifact gets what a service is made of onto the node: by http, https, or
// from a file that the node allows.
//
// It promises that what Fetch returns has the checksum that was asked for and is no
// larger than the limit, and that nothing is left of it once it is closed, or
// when the process is killed: the file has no name. It does NOT unpack it: a driver does,
// in the instance.
package artifact
