package server

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// servesTLS reports whether connections from other machines are by TLS.
func (o Options) servesTLS() bool {
	host, _, err := net.SplitHostPort(o.Listen)
	return o.TLS || o.TLSCert != "" || err == nil && !o.Insecure && !loopback(host)
}

// InsecureAt is the address at which other machines reach the server without TLS, because
// it is to be so; empty: at none.
func (o Options) InsecureAt() string {
	if host, _, err := net.SplitHostPort(o.Listen); err != nil || !o.Insecure || o.servesTLS() || loopback(host) {
		return ""
	}
	return o.Listen
}

// checkTLS refuses settings of TLS that contradict each other.
func (o Options) checkTLS() error {
	switch {
	case o.TLSCert != "" && o.TLSKey == "":
		return muster.InvalidField("tls-key", "--tls-cert is given and its key is not; give both, or neither")
	case o.TLSKey != "" && o.TLSCert == "":
		return muster.InvalidField("tls-cert", "--tls-key is given and its certificate is not; give both, or neither")
	}
	for _, name := range o.TLSNames {
		if !validName(name) {
			return muster.InvalidField("tls-name", "%q is neither a name nor an IP address", printable(name))
		}
	}
	return nil
}

// validName reports whether a certificate can be for a name: one of DNS, or an IP.
func validName(name string) bool { return net.ParseIP(name) != nil || dnsName.MatchString(name) }

// dnsName is the form of a name in DNS.
var dnsName = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// tlsNames are the names that the server's own certificate is for: auth.ServerName for
// members of the cluster, and for everybody else those of loopback, of this machine, of
// the address that is listened on, and those of the settings.
func (o Options) tlsNames() []string {
	names := []string{auth.ServerName, "localhost", "127.0.0.1", "::1"}
	if hostname, err := os.Hostname(); err == nil {
		names = append(names, hostname)
	}
	names = append(names, o.TLSNames...)
	names = append(names, o.AllowedHosts...)
	if host, _, err := net.SplitHostPort(o.Listen); err == nil && host != "" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			names = append(names, host)
		} else {
			names = append(names, addressesHere()...)
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(name string) bool {
		before := seen[hostOf(name)]
		seen[hostOf(name)] = true
		return before || !validName(name)
	})
}

// hostNames are the Host headers that are served beside those of loopback: where there
// is TLS, all that the certificate is for.
func (o Options) hostNames() []string {
	if !o.servesTLS() {
		return o.AllowedHosts
	}
	return slices.Concat(o.AllowedHosts, o.tlsNames())
}

// addressesHere are the IP addresses of this machine at the start.
func addressesHere() []string {
	var addresses []string
	all, _ := net.InterfaceAddrs() // without them the certificate has fewer names
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			addresses = append(addresses, n.IP.String())
		}
	}
	return addresses
}

// openTLS gets ready what it takes to serve by TLS, if that is to be.
func (s *Server) openTLS(cluster string) error {
	if s.authority == nil {
		return nil
	}
	if s.options.TLSCert != "" {
		s.given = &givenCertificate{cert: s.options.TLSCert, key: s.options.TLSKey, now: s.options.Now, warn: func(err error) {
			s.log.Warn("the new certificate is not used; the one before is", "err", err)
		}}
		if err := s.given.open(); err != nil {
			return err
		}
	}
	if err := openAuthority(s.authority, cluster); err != nil {
		return err
	}
	_, err := s.authority.certificate()
	return err
}

// CAFile is where the certificates are that this server is verified by, which anybody may
// read; empty: it has no TLS.
func (s *Server) CAFile() string {
	if s.authority == nil {
		return ""
	}
	return filepath.Join(s.authority.dir, bundleFile)
}

// serverTLS is how connections are taken: members of the cluster ask for
// auth.ServerName and get the certificate of the cluster's authority; everybody else
// gets one of the operator's own, if there is one.
func (s *Server) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}, // a WebSocket begins as one
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if s.given != nil && hello.ServerName != auth.ServerName {
				return s.given.current(), nil
			}
			return s.authority.certificate()
		},
	}
}

// givenCertificate is one of the operator's own, read again when its files change.
type givenCertificate struct {
	cert, key string
	now       func() time.Time
	warn      func(err error)

	mu      sync.Mutex
	loaded  *tls.Certificate
	version [2]fileVersion
	looked  time.Time
}

// fileVersion tells one content of a file from the next.
type fileVersion struct {
	changed time.Time
	size    int64
}

// lookEvery is how often the files are looked at, at most.
const lookEvery = time.Second

// open reads both files. INVALID: they cannot be used; FORBIDDEN: everybody can read the key.
func (g *givenCertificate) open() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looked = g.now()
	version, err := g.versions()
	if err != nil {
		return err
	}
	return g.loadLocked(version)
}

func (g *givenCertificate) loadLocked(version [2]fileVersion) error {
	pair, err := tls.LoadX509KeyPair(g.cert, g.key)
	if err != nil {
		return muster.Errorf(muster.Invalid, "the certificate %s with the key %s cannot be used: %w", g.cert, g.key, err)
	}
	g.loaded, g.version = &pair, version
	return nil
}

func (g *givenCertificate) versions() (v [2]fileVersion, err error) {
	for i, path := range []string{g.cert, g.key} {
		info, err := os.Stat(path)
		if err != nil {
			return v, muster.Errorf(muster.Invalid, "%s cannot be read: %w; see --tls-cert and --tls-key", path, err)
		}
		if i == 1 && info.Mode().Perm()&0o007 != 0 {
			return v, muster.Errorf(muster.Forbidden, "%s can be read by everybody (mode %04o): run chmod 600 %s, and replace the key if somebody may have read it",
				path, info.Mode().Perm(), path)
		}
		v[i] = fileVersion{info.ModTime(), info.Size()}
	}
	return v, nil
}

// current is the newest that could be used.
func (g *givenCertificate) current() *tls.Certificate {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	if now.Sub(g.looked) < lookEvery && !now.Before(g.looked) {
		return g.loaded
	}
	g.looked = now
	version, err := g.versions()
	if err == nil && version != g.version {
		err = g.loadLocked(version) // both files may be in the middle of being replaced: look again
	}
	if err != nil {
		g.warn(err)
	}
	return g.loaded
}
