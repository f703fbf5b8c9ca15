// Package artifact gets what a service is made of onto the node: by http, https, or
// from a file that the node allows. It keeps what was of use, by its checksum, so that what
// was fetched once is there again when the place that it came from is not.
//
// It promises that what Fetch returns has the checksum that was asked for and is no larger
// than the limit, wherever it was; that nothing has a name before it is whole; that all that it keeps
// together is no more than was set; and that what is in use is not given up for something else.
// It does NOT unpack anything: a driver does, in the instance. It does NOT know what is in
// use: whoever calls it says so.
package artifact
