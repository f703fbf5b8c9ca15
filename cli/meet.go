package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// greet makes a handshake and says nothing more. It returns the certificates that were
// presented, and whether this machine's authorities vouch for them.
func (a *app) greet(ctx context.Context, server string) (chain []*x509.Certificate, known bool, err error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, false, err
	}
	// A server with a certificate of its operator's own presents that to everybody but who
	// asks for the name that members of the cluster ask for.
	known, chain, err = handshake(ctx, u.Host, u.Hostname())
	if err != nil || known {
		return chain, known, err
	}
	_, chain, err = handshake(ctx, u.Host, auth.ServerName)
	return chain, false, err
}

func handshake(ctx context.Context, address, name string) (known bool, chain []*x509.Certificate, err error) {
	dialer := tls.Dialer{NetDialer: new(net.Dialer), Config: &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: name,
		InsecureSkipVerify: true, // nothing is sent, and what is presented is judged below
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
			return false, nil, usageError("%s does not speak TLS; write http:// if it is a muster server on this machine", address)
		}
		return false, nil, muster.Errorf(muster.Unavailable, "cannot reach the server at %s: %w; is it running?", address, err)
	}
	defer func() { _ = conn.Close() }()
	chain = conn.(*tls.Conn).ConnectionState().PeerCertificates
	others := x509.NewCertPool()
	for _, c := range chain[1:] {
		others.AddCert(c)
	}
	_, err = chain[0].Verify(x509.VerifyOptions{DNSName: name, Intermediates: others})
	return err == nil, chain, nil
}

// issuer is the authority of the chain that signed its first certificate; nil: none did.
func issuer(chain []*x509.Certificate) *x509.Certificate {
	for _, c := range chain[1:] {
		if c.IsCA && chain[0].CheckSignatureFrom(c) == nil && c.CheckSignatureFrom(c) == nil {
			return c
		}
	}
	return nil
}

// pinned returns the authority of a pin, as PEM, once the chain has led to it.
func pinned(chain []*x509.Certificate, pin auth.Pin) (string, error) {
	raw := make([][]byte, len(chain))
	for i, c := range chain {
		raw[i] = c.Raw
	}
	if _, err := (auth.Trust{Pin: pin}).Server(raw, time.Now()); err != nil {
		return "", err
	}
	for _, c := range chain[1:] {
		if auth.PinOf(c) == pin && c.CheckSignatureFrom(c) == nil {
			return string(auth.EncodeBundle([]*x509.Certificate{c})), nil
		}
	}
	return "", fmt.Errorf("the server presented the authority %s without its own certificate", pin)
}
