package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registry/auth"
)

const (
	authorityDir  = "ca"
	authorityFile = "ca.pem" // the private key and the certificates
	bundleFile    = "ca.crt" // what others may know, for whom has to trust it
	// endWarning is how long before its end an authority is worth a warning.
	endWarning = 90 * 24 * time.Hour
)

// authority keeps the cluster's certificate authority in <data>/ca, and issues the
// server's own certificate and those of nodes. It is safe for concurrent use.
type authority struct {
	dir   string
	names []string // that the server is reached at
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	ca      *auth.CA
	own     *tls.Certificate // the server's; nil: issue one
	renewAt time.Time        // when own is to be replaced
}

// openAuthority reads the authority of a cluster, or makes it at the first start.
func openAuthority(a *authority, cluster string) error {
	if err := os.MkdirAll(a.dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the certificate authority: %w", err)
	}
	path := filepath.Join(a.dir, authorityFile)
	text, err := keyfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		ca, err := auth.NewCA(cluster, a.now())
		if err != nil {
			return err
		}
		a.log.Info("a certificate authority was made", "file", path)
		return a.keep(ca)
	}
	if err != nil {
		return err
	}
	ca, err := auth.DecodeCA(text)
	if err != nil {
		return muster.Errorf(muster.Invalid, "the certificate authority %s cannot be read: %w; restore it from a backup, or remove the file and let every node join anew", path, err)
	}
	if ca.ClusterUID() != cluster {
		return muster.Errorf(muster.Conflict,
			"%s is the certificate authority of another cluster than the database beside it: restore both from the same backup, or remove the file and let every node join anew", path)
	}
	if left := ca.NotAfter().Sub(a.now()); left < endWarning {
		a.log.Warn("the certificate authority ends soon: run muster ca rotate", "at", ca.NotAfter())
	}
	a.ca = ca
	return a.writeBundle(ca) // which may be missing since a crash
}

// keep writes an authority, then uses it.
func (a *authority) keep(ca *auth.CA) error {
	text, err := ca.Encode()
	if err != nil {
		return err
	}
	if err := keyfile.Write(filepath.Join(a.dir, authorityFile), text); err != nil {
		return fmt.Errorf("keep the certificate authority: %w", err)
	}
	a.ca, a.own = ca, nil
	return a.writeBundle(ca)
}

// writeBundle writes the copy without the key, for people.
func (a *authority) writeBundle(ca *auth.CA) error {
	if err := renameio.WriteFile(filepath.Join(a.dir, bundleFile), auth.EncodeBundle(ca.Roots()), 0o644); err != nil {
		return fmt.Errorf("write the authority's certificates: %w", err)
	}
	return nil
}

// Rotate replaces the authority by one with a new key, without anybody being cut off.
// CONFLICT: it is not the one with the pin, if one is given.
func (a *authority) Rotate(pin string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.ca.Pin().String(); pin != "" && pin != now {
		return muster.Errorf(muster.Conflict, "the certificate authority that issues now has the pin %s: it was replaced already", now)
	}
	next, err := a.ca.Rotate(a.now())
	if err != nil {
		return err
	}
	if err := a.keep(next); err != nil {
		return err
	}
	a.log.Info("the certificate authority was replaced", "ends", next.NotAfter())
	return nil
}

// current is the authority as it is now.
func (a *authority) current() *auth.CA {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ca
}

// Pin is what join tokens carry.
func (a *authority) Pin() auth.Pin { return a.current().Pin() }

// Authorities are those that are trusted, the newest first.
func (a *authority) Authorities() []*muster.CertificateAuthority {
	var all []*muster.CertificateAuthority
	for i, root := range a.current().Roots() {
		all = append(all, &muster.CertificateAuthority{
			Pin: auth.PinOf(root).String(), NotBefore: root.NotBefore, NotAfter: root.NotAfter, Issues: i == 0,
			Certificate: string(auth.EncodeBundle([]*x509.Certificate{root})),
		})
	}
	return all
}

// trust is whom the server believes.
func (a *authority) trust() auth.Trust { return auth.Trust{Roots: a.current().Roots()} }

// Issue signs a node's certificate request. INVALID, field csr: it cannot be.
func (a *authority) Issue(csr string, node muster.NodeUID) (certificate, ca string, err error) {
	public, err := auth.ParseRequest(csr)
	if err != nil {
		return "", "", err
	}
	by := a.current()
	c, err := by.Issue(auth.Wish{Public: public, Identity: auth.NodeIdentity(by.ClusterUID(), node)}, a.now())
	if err != nil {
		return "", "", err
	}
	return string(auth.EncodeBundle([]*x509.Certificate{c})), string(auth.EncodeBundle(by.Roots())), nil
}

// certificate is the server's own, to serve and to call with. It is replaced after two
// thirds of its life, at the next connection: those that there are go on.
func (a *authority) certificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	if a.own != nil && now.Before(a.renewAt) && !now.Before(a.own.Leaf.NotBefore) {
		return a.own, nil
	}
	key, err := auth.NewKey()
	if err != nil {
		return nil, fmt.Errorf("make a key for the server's certificate: %w", err)
	}
	leaf, err := a.ca.Issue(auth.Wish{Public: key.Public(), Identity: auth.ServerIdentity(a.ca.ClusterUID()), Names: a.names}, now)
	if err != nil {
		return nil, fmt.Errorf("issue the server's certificate: %w", err)
	}
	a.own = &tls.Certificate{Certificate: append([][]byte{leaf.Raw}, a.ca.Chain()...), PrivateKey: key, Leaf: leaf}
	a.renewAt = auth.RenewAt(leaf)
	a.log.Info("the server has a new certificate", "until", leaf.NotAfter)
	return a.own, nil
}

// party is the server on connections by TLS.
func (a *authority) party() auth.Party {
	return auth.Party{Trust: a.trust, Certificate: a.certificate, Now: a.now}
}
