package agent

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registry/auth"
)

// The files of a node that joined, in the agent's state directory.
const (
	nodeKeyFile   = "node.key"    // its private key
	nodeCertFile  = "node.crt"    // its certificate; not there without TLS
	authorityFile = "ca.crt"      // whom it trusts; not there without TLS
	accessKeyFile = "access.key"  // what it presents
	joinedFile    = "joined.json" // written last: the others are complete
)

// maxAuthorities bounds whom a node trusts.
const maxAuthorities = 16

// joined is what a node remembers of its joining.
type joined struct {
	Server string         `json:"server"` // its URL
	Token  string         `json:"token"`  // a hash of the token's secret
	UID    muster.NodeUID `json:"uid"`
	ID     muster.NodeID  `json:"id"` // the name that it joined by
}

// Credentials are what a node that joined proves itself with. They are safe for
// concurrent use, and change when the certificate is renewed.
type Credentials struct {
	dir    string
	joined joined
	access string
	key    *ecdsa.PrivateKey

	mu          sync.Mutex
	certificate *tls.Certificate // nil: the server has no TLS
	roots       []*x509.Certificate
}

// OpenCredentials reads those in an agent's state directory. fs.ErrNotExist: the node
// has not joined; FORBIDDEN: others can read a file that they must not.
func OpenCredentials(dir string) (*Credentials, error) {
	c := &Credentials{dir: dir}
	text, err := keyfile.Read(filepath.Join(dir, joinedFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c.joined); err != nil {
		return nil, c.broken(joinedFile, err)
	}
	if text, err = keyfile.Read(filepath.Join(dir, accessKeyFile)); err != nil {
		return nil, c.broken(accessKeyFile, err)
	}
	access, err := auth.ParseKey(string(text))
	if err != nil {
		return nil, c.broken(accessKeyFile, err)
	}
	c.access = access.Text()
	if text, err = keyfile.Read(filepath.Join(dir, nodeKeyFile)); err == nil {
		c.key, err = auth.DecodeKey(text)
	}
	if err != nil {
		return nil, c.broken(nodeKeyFile, err)
	}
	if err := c.readCertificates(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Credentials) readCertificates() error {
	if !c.Secure() {
		return nil
	}
	authorities, err := keyfile.Read(filepath.Join(c.dir, authorityFile))
	var own []byte
	if err == nil {
		own, err = keyfile.Read(filepath.Join(c.dir, nodeCertFile))
	}
	if err == nil {
		err = c.use(muster.Certificates{Certificate: string(own), CA: string(authorities)})
	}
	if err != nil {
		return c.broken(nodeCertFile, err)
	}
	return nil
}

// broken is a file that cannot be used. One that others can read says itself what to do.
func (c *Credentials) broken(file string, err error) error {
	if muster.CodeOf(err) == muster.Forbidden {
		return err
	}
	return muster.Errorf(muster.Invalid, "%s cannot be used: %w; restore it, or remove %s and let the node join anew",
		filepath.Join(c.dir, file), err, filepath.Join(c.dir, joinedFile))
}

// use takes certificates, once they are seen to be this node's.
func (c *Credentials) use(issued muster.Certificates) error {
	roots, err := auth.DecodeBundle([]byte(issued.CA))
	if err != nil {
		return fmt.Errorf("the authorities that the server named: %w", err)
	}
	own, err := auth.DecodeBundle([]byte(issued.Certificate))
	if err != nil {
		return fmt.Errorf("the certificate that the server issued: %w", err)
	}
	who, ok := auth.IdentityOf(own[0])
	switch {
	case !ok || !who.IsNode() || who.Node != c.joined.UID || !c.key.PublicKey.Equal(own[0].PublicKey):
		return errors.New("the certificate that the server issued is not this node's")
	case len(roots) > maxAuthorities || who.ClusterUID != (auth.Trust{Roots: roots}).ClusterUID():
		return errors.New("the authorities that the server named are not those of the node's cluster")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roots = roots
	c.certificate = &tls.Certificate{Certificate: [][]byte{own[0].Raw}, PrivateKey: c.key, Leaf: own[0]}
	return nil
}

// keep takes certificates and writes them. Each file goes with either version of the other.
func (c *Credentials) keep(issued muster.Certificates) error {
	if err := c.use(issued); err != nil {
		return err
	}
	return errors.Join(
		keyfile.Write(filepath.Join(c.dir, authorityFile), []byte(issued.CA)),
		keyfile.Write(filepath.Join(c.dir, nodeCertFile), []byte(issued.Certificate)),
	)
}

// Server is the URL of the server that the node joined.
func (c *Credentials) Server() string { return c.joined.Server }

// Key is the text of the node's access key.
func (c *Credentials) Key() string { return c.access }

// NodeID is the name that the node joined by, and has until it joins anew.
func (c *Credentials) NodeID() muster.NodeID { return c.joined.ID }

// UID is the node's.
func (c *Credentials) UID() muster.NodeUID { return c.joined.UID }

// Trust is whom the node takes for its server.
func (c *Credentials) Trust() auth.Trust {
	c.mu.Lock()
	defer c.mu.Unlock()
	return auth.Trust{Roots: c.roots}
}

// Secure reports whether the server has TLS, and so the node a certificate.
func (c *Credentials) Secure() bool {
	return c != nil && strings.HasPrefix(c.joined.Server, "https:")
}

// own is the node's certificate as it is now.
func (c *Credentials) own() (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.certificate == nil {
		return nil, errors.New("the node has no certificate")
	}
	return c.certificate, nil
}

func (c *Credentials) party() auth.Party { return auth.Party{Trust: c.Trust, Certificate: c.own} }
