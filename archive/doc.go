// Package archive is how an image, and what a service is made of, travels: a tar file
// with a tree in it, plain or compressed by gzip or zstd, and what is checked of it
// wherever one is read.
//
// It promises that nothing but a plain tree comes out of an archive, whoever made
// it: no entry outside of the tree or behind a link, no device, no entry twice,
// never more than the limits allow; an error names the entry. It promises that an
// archive has one canonical form, whose digest is the tree's: Canonical writes it,
// and writes the same again when it is given that. The order of the entries is
// kept: Pack sorts them.
//
// It does NOT keep what an image has no use for: access times, names of users,
// extended attributes but for capabilities and those of users. Absolute symbolic links
// are kept, since Debian trees are full of them: inside an instance they stay in
// it, and nothing here follows one. It does NOT make unpacking atomic: who unpacks
// does that around it.
package archive
