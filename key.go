package muster

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// KeyID is an access key's identity: `k-1`, `k-2`, …; never reused.
type KeyID string

// TokenID is a join token's identity: `t-1`, `t-2`, …; never reused.
type TokenID string

// The names of the sequences of key and token ids.
const (
	KeySequence   = "key"
	TokenSequence = "token"
)

// The limits of keys and tokens.
const (
	MaxScopePatterns = 32
	MaxTokenUses     = 1000
	MaxTokenTTL      = 30 * 24 * time.Hour
	DefaultTokenTTL  = time.Hour
	MaxKeyOverlap    = 30 * 24 * time.Hour
)

// KeyIDOf returns the id of the n-th key.
func KeyIDOf(n int64) KeyID { return KeyID("k-" + strconv.FormatInt(n, 10)) }

// TokenIDOf returns the id of the n-th join token.
func TokenIDOf(n int64) TokenID { return TokenID("t-" + strconv.FormatInt(n, 10)) }

// KeyScope is the part of the cluster that a key is for. An empty list is no limit; a
// pattern is a name in which * stands for any characters.
type KeyScope struct {
	// Nodes are patterns of node ids: the nodes, and with them their instances, that
	// a key sees and changes.
	Nodes []string `json:"nodes,omitempty"`
	// Clusters and Services are patterns of what a REGISTRAR may register.
	Clusters []string `json:"clusters,omitempty"`
	Services []string `json:"services,omitempty"`
}

// HasNode reports whether a node is in the scope.
func (s KeyScope) HasNode(id NodeID) bool { return matchesAny(s.Nodes, string(id)) }

// HasService reports whether a service is in the scope, by its name.
func (s KeyScope) HasService(name string) bool { return matchesAny(s.Services, name) }

// HasCluster reports whether a REGISTRAR may register in a cluster.
func (s KeyScope) HasCluster(name string) bool { return matchesAny(s.Clusters, name) }

// Unlimited reports whether the scope is the whole cluster.
func (s KeyScope) Unlimited() bool { return len(s.Nodes)+len(s.Clusters)+len(s.Services) == 0 }

func matchesAny(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // it was checked
		return ok
	})
}

// Validate refuses patterns that are none.
func (s KeyScope) Validate() error {
	for _, list := range []struct {
		field    string
		patterns []string
	}{{"scope.nodes", s.Nodes}, {"scope.clusters", s.Clusters}, {"scope.services", s.Services}} {
		if list.patterns != nil && len(list.patterns) == 0 {
			return InvalidField(list.field, "it is empty, which would be no limit; name what the key is for, or leave it out if that is everything")
		}
		if len(list.patterns) > MaxScopePatterns {
			return InvalidField(list.field, "there are %d patterns, at most %d are allowed", len(list.patterns), MaxScopePatterns)
		}
		for _, p := range list.patterns {
			if err := CheckText(list.field, p, MaxNameBytes); err != nil {
				return err
			}
			if p == "" || strings.ContainsAny(p, `?[]\/`) {
				return InvalidField(list.field, "%q is no pattern; give a name in which * stands for any characters, such as web-*", p)
			}
		}
	}
	return nil
}

// AccessKey is what people, programs and agents present. Of its secret only a hash is
// kept.
type AccessKey struct {
	ID    KeyID    `gorm:"column:id;primaryKey" json:"id"`
	Name  string   `gorm:"column:name" json:"name"`
	Role  Role     `gorm:"column:role" json:"role"`
	Scope KeyScope `gorm:"column:scope;serializer:json" json:"scope"`
	// NodeUID is the node that the key was issued to when it joined; empty on others.
	NodeUID NodeUID `gorm:"column:node_uid" json:"nodeUid,omitempty"`
	// NodeRole is what that node is for, as its join token said; empty: as its agent says.
	NodeRole NodeRole `gorm:"column:node_role" json:"nodeRole,omitempty"`
	// Parent is the key that a browser was signed in with whose session this is, or
	// "local" where no key is asked for; empty on others. It ends with that key.
	Parent KeyID `gorm:"column:parent" json:"parent,omitempty"`
	// Hash is SHA-256 of the secret, as hex. Never in a change row, never sent.
	Hash string `gorm:"column:hash" json:"-"`
	// Secret counts the secrets that the key has had; the newest is the one of Hash.
	Secret int64 `gorm:"column:secret" json:"secret"`
	// FormerHash is that of the secret before, which is good until FormerUntil.
	FormerHash  string     `gorm:"column:former_hash" json:"-"`
	FormerUntil *time.Time `gorm:"column:former_until" json:"formerUntil,omitempty"`
	CreatedAt   time.Time  `gorm:"column:created_at" json:"createdAt"`
	CreatedBy   string     `gorm:"column:created_by" json:"createdBy"`
	ExpiresAt   *time.Time `gorm:"column:expires_at" json:"expiresAt,omitempty"`
	RevokedAt   *time.Time `gorm:"column:revoked_at" json:"revokedAt,omitempty"`
	// LastUsedAt is to the hour, as of the last flush; ask the registry.
	LastUsedAt *time.Time `gorm:"column:last_used_at" json:"-"`
	// Revision is that of its newest change.
	Revision int64 `gorm:"column:revision" json:"revision"`
}

// TableName is the table that holds access keys.
func (AccessKey) TableName() string { return "access_keys" }

// Clone returns a copy that can be changed.
func (k *AccessKey) Clone() *AccessKey { c := *k; return &c }

// KeyStatus is whether a key opens anything.
type KeyStatus string

// The statuses of keys.
const (
	KeyActive  KeyStatus = "ACTIVE"
	KeyExpired KeyStatus = "EXPIRED"
	KeyRevoked KeyStatus = "REVOKED"
)

// StatusAt is the key's status at a moment.
func (k *AccessKey) StatusAt(now time.Time) KeyStatus {
	switch {
	case k.RevokedAt != nil:
		return KeyRevoked
	case k.ExpiresAt != nil && !now.Before(*k.ExpiresAt):
		return KeyExpired
	}
	return KeyActive
}

// CreateAccessKeyInput asks for a key.
type CreateAccessKeyInput struct {
	Name      string     `json:"name"`
	Role      Role       `json:"role"`
	Scope     *KeyScope  `json:"scope,omitempty"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	RequestID string     `json:"requestId,omitempty"`
}

// Validate refuses an input that no key can be made of at that moment.
func (in *CreateAccessKeyInput) Validate(now time.Time) error {
	scope := KeyScope{}
	if in.Scope != nil {
		scope = *in.Scope
	}
	switch {
	case !in.Role.Valid():
		return InvalidField("role", "%q is no role of a key; use ADMIN, OPERATOR, VIEWER, NODE or REGISTRAR", in.Role)
	case in.ExpiresAt != nil && !in.ExpiresAt.After(now):
		return InvalidField("expiresAt", "%s has passed already; give a later moment", in.ExpiresAt.UTC().Format(time.RFC3339))
	case in.ExpiresAt != nil && in.ExpiresAt.UTC().Year() > 9999:
		return InvalidField("expiresAt", "it is too far away; leave it out for a key that does not end by itself")
	case in.Role == NodeAgent && len(scope.Nodes) == 0:
		return InvalidField("scope.nodes", "a key of the role NODE has to say for which nodes it is; name them, or let machines join with a token, which gives each its own key")
	case in.Role == Admin && !scope.Unlimited():
		return InvalidField("scope", "an ADMIN key is for everything; use OPERATOR for a part of the cluster")
	case in.Role != Registrar && len(scope.Clusters)+len(scope.Services) > 0:
		return InvalidField("scope", "clusters and services limit keys of the role REGISTRAR alone; leave them out")
	case in.Role == Registrar && len(scope.Nodes) > 0:
		return InvalidField("scope.nodes", "a REGISTRAR key has no nodes; limit it by clusters and services")
	}
	return first(
		CheckText("name", in.Name, MaxNameBytes),
		CheckName("name", in.Name),
		scope.Validate(),
		CheckText("requestId", in.RequestID, MaxRequestIDBytes),
	)
}

// AccessKeyEdge is a key on a page.
type AccessKeyEdge struct {
	Cursor string
	Node   *AccessKey
}

// AccessKeyConnection is a page of keys. Count counts all, when asked.
type AccessKeyConnection struct {
	Edges    []*AccessKeyEdge
	PageInfo *PageInfo
	Count    func() int
}

// TotalCount is how many there are in all.
func (c *AccessKeyConnection) TotalCount() int { return c.Count() }
