// Package auth is what callers prove themselves with: the text of access keys and
// join tokens, the cluster's certificate authority and what it issues, and a
// throttle for those who guess.
//
// It is pure: it reads no file and no clock, holds no key but those that it is
// given, and its only source beside its arguments is crypto/rand. Both ends of a
// connection use it, so that what one writes the other reads.
//
// It promises that no error, log line or JSON of its types contains a secret: only
// Text writes one. It promises that a damaged key is told apart from a wrong one
// (the text ends with a checksum), that comparing takes the same time whatever is
// compared, and that a certificate is believed for exactly one identity.
//
// It does NOT decide who may do what, does not know which keys there are, which are
// revoked or used up, and keeps nothing on disk: that is the registry's and the
// server's.
package auth
