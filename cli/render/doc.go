// Package render writes files from the discovery feed: the configuration of a load
// balancer, or the targets of Prometheus, from a template and what is registered.
//
// It promises that a file it keeps is at any moment either what it was or a whole new
// text that its check has accepted: texts are written beside the file and renamed into
// its place, a check looks at a new text before the others see it, and what a failing
// reload leaves is put back. Without the right to mount, a check that names no {} looks at
// the file in its place: it is put back when the check fails, and by the next run when
// this process was killed meanwhile. A text that is the same changes nothing, not even the
// time of the file. The guard keeps a file when what it is from is suddenly gone; it
// remembers across runs, in a directory beside the file.
//
// It does NOT promise a render for each change, only one after the last; it does not
// judge what a template makes of an annotation; and it does not retry a single run.
package render
