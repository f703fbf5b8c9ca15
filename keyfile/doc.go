// Package keyfile keeps secrets in files: private keys, access keys.
//
// It promises that a file it wrote can be read by its owner alone and is whole or not
// there, also after a power cut; and that a file which others can read is refused, with
// what to do about it. No error quotes what is in a file.
//
// It does NOT encrypt: whoever is root, or the owner, reads it. It does not look at who
// may change the directory.
package keyfile
