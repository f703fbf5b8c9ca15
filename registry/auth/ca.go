package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"
)

const (
	// authorityLife is how long an authority lasts.
	authorityLife = 10 * 365 * 24 * time.Hour
	// CertificateLife is how long what it issues lasts.
	CertificateLife = 30 * 24 * time.Hour
	// backdate lets clocks that are behind believe a certificate at once.
	backdate = 10 * time.Minute
	// maxGenerations is how many authorities are presented; who trusts an older one only
	// has to join anew.
	maxGenerations = 4
)

// CA is a cluster's certificate authority, with those that came before it. It does
// not change: Rotate returns another one. It is safe for concurrent use.
type CA struct {
	cluster string
	key     *ecdsa.PrivateKey
	// generations are the authorities, the newest first; the first one's key is key, those
	// of the others are gone.
	generations []generation
}

// generation is one authority.
type generation struct {
	root  *x509.Certificate // by itself
	cross *x509.Certificate // the same key, by the generation before; nil for the first
}

// NewCA makes the first authority of a cluster, ECDSA on P-256, for 10 years.
func NewCA(cluster string, now time.Time) (*CA, error) {
	if !isPlain(cluster) {
		return nil, fmt.Errorf("make an authority: %q is no cluster's uid", cluster)
	}
	ca := &CA{cluster: cluster}
	if err := ca.begin(now); err != nil {
		return nil, err
	}
	return ca, nil
}

// begin makes a key and its root, as the newest generation.
func (ca *CA) begin(now time.Time) (err error) {
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return fmt.Errorf("make an authority's key: %w", err)
	}
	template := authorityTemplate(ca.cluster, now)
	root, err := sign(template, template, ca.key.Public(), ca.key)
	if err != nil {
		return err
	}
	ca.generations = slices.Insert(ca.generations, 0, generation{root: root})
	return nil
}

func authorityTemplate(cluster string, now time.Time) *x509.Certificate {
	var name [4]byte
	_, _ = rand.Read(name[:]) // never fails
	return &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "muster CA " + hex.EncodeToString(name[:])},
		URIs:                  []*url.URL{authority(cluster).uri()},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
}

// Rotate returns an authority with a new key. Certificates of the old one stay good,
// and who trusts only the old one believes those of the new, because the old key signs
// the new authority too; it is forgotten after that. The authorities that have expired,
// and all but the newest four, are left out.
func (ca *CA) Rotate(now time.Time) (*CA, error) {
	next := &CA{cluster: ca.cluster, generations: slices.Clone(ca.generations)}
	if err := next.begin(now); err != nil {
		return nil, err
	}
	newest, before := &next.generations[0], next.generations[1]
	template := *newest.root
	template.SerialNumber = serial()
	template.NotAfter = earlier(newest.root.NotAfter, before.root.NotAfter)
	cross, err := sign(&template, before.root, newest.root.PublicKey, ca.key)
	if err != nil {
		return nil, err
	}
	newest.cross = cross
	keep := 1
	for keep < min(len(next.generations), maxGenerations) && now.Before(next.generations[keep].root.NotAfter) {
		keep++
	}
	next.generations = next.generations[:keep]
	next.generations[keep-1].cross = nil // by one that is not presented
	return next, nil
}

// ClusterUID is the cluster that it is of.
func (ca *CA) ClusterUID() string { return ca.cluster }

// Pin is that of the newest authority: what join tokens carry.
func (ca *CA) Pin() Pin { return PinOf(ca.generations[0].root) }

// Roots are the authorities, the newest first: what members of the cluster trust.
func (ca *CA) Roots() []*x509.Certificate {
	roots := make([]*x509.Certificate, len(ca.generations))
	for i, g := range ca.generations {
		roots[i] = g.root
	}
	return roots
}

// Chain is what to present behind a certificate of the newest authority, so that it
// is believed by who trusts, or pins, any of the authorities.
func (ca *CA) Chain() [][]byte {
	var chain [][]byte
	for _, g := range ca.generations {
		if g.cross != nil {
			chain = append(chain, g.cross.Raw)
		}
	}
	for _, g := range ca.generations {
		chain = append(chain, g.root.Raw)
	}
	return chain
}

// NotAfter is when the newest authority ends; rotate long before.
func (ca *CA) NotAfter() time.Time { return ca.generations[0].root.NotAfter }

// sign makes a certificate.
func sign(template, parent *x509.Certificate, public any, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read a certificate that was just signed: %w", err)
	}
	return c, nil
}

// serial is a random number of 127 bits.
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
