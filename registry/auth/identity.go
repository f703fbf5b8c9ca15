package auth

import (
	"crypto/x509"
	"net/url"
	"strings"

	"github.com/muster-cloud/muster"
)

// uriScheme is that of the names in certificates.
const uriScheme = "muster"

// ServerName is what a member of a cluster asks for by SNI and what every server's
// certificate is for, whatever address it is reached at. No DNS knows it.
const ServerName = "server.muster.internal"

// Identity is whom a certificate is for: the server of a cluster, a node, or the
// authority itself. The zero Identity is nobody.
type Identity struct {
	ClusterUID string
	role       string         // "server", "node" or "ca"
	Node       muster.NodeUID // of a node
}

// ServerIdentity is that of a cluster's server.
func ServerIdentity(cluster string) Identity { return Identity{ClusterUID: cluster, role: "server"} }

// NodeIdentity is that of a node.
func NodeIdentity(cluster string, uid muster.NodeUID) Identity {
	return Identity{ClusterUID: cluster, role: "node", Node: uid}
}

func authority(cluster string) Identity { return Identity{ClusterUID: cluster, role: "ca"} }

// IsServer reports whether it is a server's.
func (i Identity) IsServer() bool { return i.role == "server" }

// IsNode reports whether it is a node's.
func (i Identity) IsNode() bool { return i.role == "node" }

// String is the identity as a certificate has it: muster://CLUSTER/server,
// muster://CLUSTER/node/UID.
func (i Identity) String() string { return i.uri().String() }

func (i Identity) uri() *url.URL {
	path := "/" + i.role
	if i.IsNode() {
		path += "/" + string(i.Node)
	}
	return &url.URL{Scheme: uriScheme, Host: i.ClusterUID, Path: path}
}

// ParseIdentity reads what String wrote.
func ParseIdentity(text string) (Identity, bool) {
	rest, ok := strings.CutPrefix(text, uriScheme+"://")
	cluster, path, _ := strings.Cut(rest, "/")
	if !ok || !isPlain(cluster) {
		return Identity{}, false
	}
	switch path {
	case "server", "ca":
		return Identity{ClusterUID: cluster, role: path}, true
	}
	uid, ok := strings.CutPrefix(path, "node/")
	if !ok || !isPlain(uid) {
		return Identity{}, false
	}
	return NodeIdentity(cluster, muster.NodeUID(uid)), true
}

// isPlain reports whether a text is a uid: what a URI need not escape.
func isPlain(text string) bool {
	return text != "" && len(text) <= 128 && strings.Trim(text, digits+"-") == ""
}

// IdentityOf is whom a certificate is for; false when it is nobody of a cluster's, or
// more than one. It says nothing about whether the certificate is to be believed.
func IdentityOf(c *x509.Certificate) (Identity, bool) {
	if len(c.URIs) != 1 {
		return Identity{}, false
	}
	return ParseIdentity(c.URIs[0].String())
}
