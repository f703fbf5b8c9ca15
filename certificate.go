package muster

import "time"

// CertificateAuthority vouches for a cluster's server and nodes.
type CertificateAuthority struct {
	Pin       string // the SHA-256 of its public key, as join tokens carry it
	NotBefore time.Time
	NotAfter  time.Time
	// Issues tells the one that issues certificates now from those before it.
	Issues      bool
	Certificate string // as PEM
}
