package muster

import "time"

// JoinToken lets machines join: whoever presents it gets a node's key and, where
// there is TLS, a certificate.
type JoinToken struct {
	ID   TokenID `gorm:"column:id;primaryKey" json:"id"`
	Hash string  `gorm:"column:hash" json:"-"` // SHA-256 of the secret, as hex
	// Role is what nodes that join by it are for; empty: what their agents say.
	Role NodeRole `gorm:"column:role" json:"role,omitempty"`
	// Labels are edits that nodes which join by it begin with.
	Labels Map `gorm:"column:labels;serializer:json" json:"labels,omitempty"`
	// Uses is how many machines may join by it, Used by whom it was used.
	Uses      int        `gorm:"column:uses" json:"uses"`
	Used      []TokenUse `gorm:"column:used;serializer:json" json:"used"`
	CreatedAt time.Time  `gorm:"column:created_at" json:"createdAt"`
	CreatedBy string     `gorm:"column:created_by" json:"createdBy"`
	ExpiresAt time.Time  `gorm:"column:expires_at" json:"expiresAt"`
	Revision  int64      `gorm:"column:revision" json:"revision"`
}

// TableName is the table that holds join tokens.
func (JoinToken) TableName() string { return "join_tokens" }

// Clone returns a copy that can be changed.
func (t *JoinToken) Clone() *JoinToken {
	c := *t
	c.Used = append([]TokenUse(nil), t.Used...)
	return &c
}

// TokenUse is a machine that joined by a token.
type TokenUse struct {
	NodeID NodeID `json:"nodeId"`
	Key    KeyID  `json:"key"`
	// Machine tells the machine again that asks once more because the answer got
	// lost: a hash of its public key.
	Machine string    `json:"machine"`
	At      time.Time `json:"at"`
	Addr    string    `json:"addr"`
}

// Left is how many machines may still join.
func (t *JoinToken) Left() int { return max(t.Uses-len(t.Used), 0) }

// CreateJoinTokenInput asks for a join token.
type CreateJoinTokenInput struct {
	TTL    *time.Duration `json:"ttl,omitempty"`  // nil: DefaultTokenTTL
	Uses   *int           `json:"uses,omitempty"` // nil: 1
	Role   NodeRole       `json:"role,omitempty"`
	Labels Map            `json:"labels,omitempty"`
}

// Validate refuses an input that no token can be made of.
func (in *CreateJoinTokenInput) Validate() error {
	switch {
	case in.TTL != nil && (*in.TTL <= 0 || *in.TTL > MaxTokenTTL):
		return InvalidField("ttl", "%s is not between 1s and %s; give a span such as 1h", *in.TTL, MaxTokenTTL)
	case in.Uses != nil && (*in.Uses < 1 || *in.Uses > MaxTokenUses):
		return InvalidField("uses", "%d is not between 1 and %d", *in.Uses, MaxTokenUses)
	case in.Role != "" && in.Role != Compute && in.Role != ServiceRole:
		return InvalidField("role", "%q is no role of a node; use COMPUTE or SERVICE, or leave it to the agent", in.Role)
	}
	return CheckMap("labels", in.Labels)
}

// JoinNodeInput is what a machine that joins says of itself. The token is its
// credential.
type JoinNodeInput struct {
	// NodeID is the name that the node is to have.
	NodeID NodeID `json:"nodeId"`
	// CSR is a certificate request as PEM, made with the machine's own private key.
	CSR string `json:"csr"`
}

// MaxCSRBytes is how long a certificate request may be.
const MaxCSRBytes = 4 << 10

// Validate refuses an input that no node can be made of.
func (in *JoinNodeInput) Validate() error {
	if len(in.CSR) > MaxCSRBytes {
		return InvalidField("csr", "it has %d bytes, at most %d are allowed", len(in.CSR), MaxCSRBytes)
	}
	return CheckName("nodeId", string(in.NodeID))
}

// Joined is what a machine gets when it joins.
type Joined struct {
	NodeUID NodeUID
	// Key is the text of the node's access key; it is not shown again.
	Key string
	// Certificate is the node's, as PEM; empty where the server has no TLS.
	Certificate string
	// CA is what to verify the server by, as PEM; empty where it has no TLS.
	CA       string
	Revision int64
}

// Certificates is what a node gets when it renews its certificate.
type Certificates struct {
	Certificate string
	CA          string
}
