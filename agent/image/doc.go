// Package image keeps base images: plain directories that instances share as
// the read-only lower layer of their root.
//
// An image appears whole or not at all, also when its making is killed, and is
// never changed afterwards: instances run on it. A directory that an operator
// puts there (by debootstrap, say) is an image too; the metadata file beside it
// is optional. The package does NOT fetch images, and does NOT know who uses one.
package image
