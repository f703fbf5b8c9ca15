package auth

import (
	"crypto/tls"
	"crypto/x509"
	"time"

	"github.com/muster-cloud/muster"
)

// Party is one end of a connection by TLS. Its functions are asked at each handshake, so
// that what they return may change while connections last.
type Party struct {
	Trust       func() Trust
	Certificate func() (*tls.Certificate, error) // its own; nil: it has none
	Now         func() time.Time                 // nil: time.Now
}

// CallNamed is how a server is called that authorities of one's own vouch for: it has to
// have the name that is called.
func CallNamed(roots []*x509.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool(roots)}
}

// CallServer is how the server of a cluster is called, at whatever address: what counts
// is whose certificate answers.
func (p Party) CallServer() *tls.Config {
	return p.call(func(chain [][]byte) error {
		_, err := p.Trust().Server(chain, p.now())
		return err
	})
}

// CallNode is how exactly one node is called.
func (p Party) CallNode(uid muster.NodeUID) *tls.Config {
	return p.call(func(chain [][]byte) error { return p.Trust().Node(chain, uid, p.now()) })
}

// TakeServer is how a node takes calls: by the server of its cluster, and by nobody else.
func (p Party) TakeServer() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.Certificate() },
		ClientAuth:     tls.RequireAnyClientCert,
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := p.Trust().Server(rawChain(state), p.now())
			return err
		},
	}
}

func (p Party) call(verify func(chain [][]byte) error) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: ServerName,
		// The standard check is by the name that was dialed; VerifyConnection is stricter.
		InsecureSkipVerify: true,
		VerifyConnection:   func(state tls.ConnectionState) error { return verify(rawChain(state)) },
	}
	if p.Certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.Certificate() }
	}
	return c
}

func (p Party) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

func rawChain(state tls.ConnectionState) [][]byte {
	chain := make([][]byte, len(state.PeerCertificates))
	for i, c := range state.PeerCertificates {
		chain[i] = c.Raw
	}
	return chain
}
