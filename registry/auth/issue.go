package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
)

const (
	requestType     = "CERTIFICATE REQUEST"
	certificateType = "CERTIFICATE"
	keyType         = "PRIVATE KEY"
)

// Wish is what a certificate is to be for.
type Wish struct {
	Public   crypto.PublicKey // ECDSA on P-256
	Identity Identity
	Names    []string // names and IP addresses that it is reached at; none
}

// Issue makes a certificate for 30 days, or until the authority ends. It holds from
// ten minutes ago on.
func (ca *CA) Issue(w Wish, now time.Time) (*x509.Certificate, error) {
	if !isP256(w.Public) {
		return nil, muster.InvalidField("csr", "its key is not ECDSA on P-256")
	}
	if w.Identity.ClusterUID != ca.cluster || !w.Identity.IsServer() && !w.Identity.IsNode() {
		return nil, muster.Errorf(muster.Internal, "the authority of cluster %s does not vouch for %s", ca.cluster, w.Identity)
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		URIs:         []*url.URL{w.Identity.uri()},
		NotBefore:    now.Add(-backdate),
		NotAfter:     earlier(now.Add(CertificateLife), ca.NotAfter()),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		// A node's port is called by the server, and a server by everybody.
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	template.Subject.CommonName = strings.TrimPrefix(w.Identity.uri().Path, "/")
	for _, name := range w.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else if !slices.Contains(template.DNSNames, name) {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return sign(template, ca.generations[0].root, w.Public, ca.key)
}

// RenewAt is when to get the next certificate: after two thirds of this one's life.
func RenewAt(c *x509.Certificate) time.Time {
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// NewKey makes a key that certificates are issued for.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewRequest makes the PEM of a certificate request, which proves that its sender
// holds the key. It asks for nothing else: the registry knows whom it is for.
func NewRequest(key *ecdsa.PrivateKey) (string, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return "", err
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: requestType, Bytes: der})), nil
}

// ParseRequest returns the key of a certificate request. INVALID, field csr: it is
// none, its sender does not hold the key, or the key is of a kind that is not issued for.
func ParseRequest(text string) (crypto.PublicKey, error) {
	if len(text) > muster.MaxCSRBytes {
		return nil, muster.InvalidField("csr", "it has %d bytes, at most %d are allowed", len(text), muster.MaxCSRBytes)
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != requestType {
		return nil, muster.InvalidField("csr", "it is not a certificate request in PEM")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, muster.InvalidField("csr", "it cannot be read as a certificate request")
	}
	if !isP256(request.PublicKey) {
		return nil, muster.InvalidField("csr", "its key is not ECDSA on P-256")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, muster.InvalidField("csr", "it is not signed with the key that it is for")
	}
	return request.PublicKey, nil
}

func isP256(public crypto.PublicKey) bool {
	key, ok := public.(*ecdsa.PublicKey)
	return ok && key.Curve == elliptic.P256()
}
