// Package image keeps base images: plain directories that instances share as
// the read-only lower layer of their root.
//
// An image appears whole or not at all, also when its making is killed, and is
// never changed afterwards: instances run on it. A directory that an operator
// puts there (by debootstrap, say) is an image too; the metadata file beside it
// is optional.
//
// A Puller gets the images of a server, by digest, and takes them away when nothing uses
// them: which are used, its caller says. An image of a server's and one of the node's own
// may have the same name: they are told apart by the digest.
package image
