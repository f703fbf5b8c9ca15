package auth

import (
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
)

// Trust is whom one end of a connection believes: the authorities of a cluster, or
// whichever authority has a certain key.
type Trust struct {
	Roots []*x509.Certificate
	Pin   Pin // counts when there are no Roots
	// AnyTime leaves aside when certificates hold. It is for asking the server what time it
	// is, and for nothing that matters.
	AnyTime bool
}

// OfCluster reports whether it trusts the authorities of a cluster, or a pin, and so goes
// by identities; otherwise what counts is the name that was called.
func (t Trust) OfCluster() bool { return len(t.Roots) == 0 || t.ClusterUID() != "" }

// ClusterUID is the cluster whose authorities are trusted; empty for a pin, or roots
// that are not a cluster's.
func (t Trust) ClusterUID() string {
	for _, root := range t.Roots {
		if who, ok := IdentityOf(root); ok && who.role == "ca" {
			return who.ClusterUID
		}
	}
	return ""
}

// Server returns whose server presented a chain, or UNAUTHENTICATED: it is not to be
// believed, and nothing may be sent to it.
func (t Trust) Server(raw [][]byte, now time.Time) (Identity, error) {
	who, err := t.verify(raw, now)
	switch {
	case err != nil:
		return Identity{}, err
	case !who.IsServer():
		return Identity{}, muster.Errorf(muster.Unauthenticated, "what answers there is %s, which is not the server: check the address", who)
	}
	return who, nil
}

// Node returns nil when a chain is that of exactly this node, and UNAUTHENTICATED
// otherwise.
func (t Trust) Node(raw [][]byte, uid muster.NodeUID, now time.Time) error {
	who, err := t.verify(raw, now)
	if err != nil {
		return err
	}
	if !who.IsNode() || who.Node != uid {
		return muster.Errorf(muster.Unauthenticated, "what answers there is %s, not node %s", who, uid)
	}
	return nil
}

// verify returns whom a chain is for, once it has led to one who is trusted.
func (t Trust) verify(raw [][]byte, now time.Time) (Identity, error) {
	chain, err := parseChain(raw)
	if err != nil {
		return Identity{}, err
	}
	roots := t.Roots
	if len(roots) == 0 {
		roots = pinned(chain[1:], t.Pin)
	}
	if len(roots) == 0 {
		return Identity{}, stranger()
	}
	if t.AnyTime && (now.Before(chain[0].NotBefore) || now.After(chain[0].NotAfter)) {
		now = chain[0].NotBefore
	}
	options := x509.VerifyOptions{
		Roots: pool(roots), Intermediates: pool(chain[1:]), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, // the identity says what it is
	}
	if _, err := chain[0].Verify(options); err != nil {
		return Identity{}, distrust(err, chain[0], now)
	}
	who, ok := IdentityOf(chain[0])
	if !ok || !sameCluster(who, roots) {
		return Identity{}, stranger()
	}
	return who, nil
}

// maxChain bounds a chain that is looked at.
const maxChain = 2 + 2*maxGenerations

func parseChain(raw [][]byte) ([]*x509.Certificate, error) {
	if len(raw) == 0 {
		return nil, muster.Errorf(muster.Unauthenticated, "it presented no certificate")
	}
	if len(raw) > maxChain {
		return nil, muster.Errorf(muster.Unauthenticated, "it presented %d certificates, at most %d are looked at", len(raw), maxChain)
	}
	chain := make([]*x509.Certificate, len(raw))
	for i, der := range raw {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, muster.Errorf(muster.Unauthenticated, "its certificate cannot be read: %w", err)
		}
		chain[i] = c
	}
	return chain, nil
}

// pinned selects the authorities that a pin names.
func pinned(chain []*x509.Certificate, pin Pin) []*x509.Certificate {
	if pin.IsZero() {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(chain), func(c *x509.Certificate) bool { return !c.IsCA || PinOf(c) != pin })
}

// sameCluster reports whether an identity is of the cluster whose authorities vouch
// for it: those of a cluster vouch for nobody else.
func sameCluster(who Identity, roots []*x509.Certificate) bool {
	return slices.ContainsFunc(roots, func(root *x509.Certificate) bool {
		by, ok := IdentityOf(root)
		return ok && by.role == "ca" && by.ClusterUID == who.ClusterUID
	})
}

func pool(certificates []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certificates {
		p.AddCert(c)
	}
	return p
}

// distrust says why a chain is not believed.
func distrust(err error, leaf *x509.Certificate, now time.Time) error {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	if ok && invalid.Reason == x509.Expired {
		return muster.Errorf(muster.Unauthenticated,
			"its certificate holds from %s to %s, and here it is %s: compare the clocks of both machines",
			stamp(leaf.NotBefore), stamp(leaf.NotAfter), stamp(now))
	}
	e := stranger()
	e.Err = err
	return e
}

func stranger() *muster.Error {
	return muster.Errorf(muster.Unauthenticated,
		"what answers there is not of the cluster that is trusted here: somebody may be in between, or the server was set up anew; nothing was sent to it")
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
