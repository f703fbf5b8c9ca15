package registry

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// Certificates issues what nodes prove themselves with. Nil where there is no TLS.
type Certificates interface {
	// Issue signs a node's certificate request; the certificate says the uid. It
	// returns the certificate and what to verify servers by, as PEM.
	Issue(csr string, node muster.NodeUID) (certificate, ca string, err error)
	// Pin is what join tokens carry of the authority.
	Pin() auth.Pin
	// Authorities are those that are trusted, the newest first.
	Authorities() []*muster.CertificateAuthority
	// Rotate replaces the authority that issues. CONFLICT: it is another than pin, if one
	// is given.
	Rotate(pin string) error
}

// JoinTokens returns the join tokens that have not expired, in order of their number.
func (r *Registry) JoinTokens() []*muster.JoinToken {
	now := r.opts.Now()
	tokens := slices.Collect(where(r.View().Tokens(), func(t *muster.JoinToken) bool { return now.Before(t.ExpiresAt) }))
	if tokens == nil {
		tokens = []*muster.JoinToken{}
	}
	return tokens
}

// CreateJoinToken makes a join token and returns it with its text, which nobody can
// read again.
func (r *Registry) CreateJoinToken(ctx context.Context, in muster.CreateJoinTokenInput) (t *muster.JoinToken, text string, revision int64, err error) {
	if err := in.Validate(); err != nil {
		return nil, "", 0, err
	}
	secret := auth.NewSecret()
	now := stamp(r.opts.Now())
	revision, err = r.mutate(ctx, func(v View, w *Writes) error {
		t = &muster.JoinToken{
			ID: muster.TokenIDOf(v.meta().sequences[muster.TokenSequence] + 1), Hash: auth.Hash(secret), Role: in.Role,
			Labels: orEmpty(in.Labels), Uses: 1, Used: []muster.TokenUse{}, CreatedAt: now,
			CreatedBy: muster.PrincipalOf(ctx).Name, ExpiresAt: now.Add(muster.DefaultTokenTTL),
		}
		if in.Uses != nil {
			t.Uses = *in.Uses
		}
		if in.TTL != nil {
			t.ExpiresAt = now.Add(*in.TTL)
		}
		w.Token(t, "created")
		return nil
	})
	if err != nil {
		return nil, "", 0, err
	}
	token := auth.JoinToken{ID: string(t.ID), Secret: secret}
	if r.Certificates != nil {
		token.Pin = r.Certificates.Pin()
	}
	return t, token.Text(), revision, nil
}

// RevokeJoinToken ends a join token. Nodes that joined by it keep their keys.
func (r *Registry) RevokeJoinToken(ctx context.Context, id muster.TokenID) (*muster.JoinToken, int64, error) {
	if err := muster.CheckID("id", string(id)); err != nil {
		return nil, 0, err
	}
	var out *muster.JoinToken
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		if out = v.Token(id); out == nil {
			return muster.Errorf(muster.NotFound, "there is no join token %q: see the list of tokens", id)
		}
		w.ForgetToken(out.Clone(), "revoked")
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// JoinNode gives the machine that presents a join token a node's uid, key and
// certificate. A machine that asks again, because the answer got lost, is known by its
// public key, and does not use the token up once more. FORBIDDEN: the token has been
// used up; ALREADY_EXISTS: another machine has the name.
func (r *Registry) JoinNode(ctx context.Context, in muster.JoinNodeInput) (*muster.Joined, error) {
	if err := in.Validate(); err != nil {
		return nil, err
	}
	machine, err := machineOf(in.CSR)
	if err != nil {
		return nil, err
	}
	p := muster.PrincipalOf(ctx)
	secret, fresh := auth.NewSecret(), newUID()
	var issued *muster.AccessKey
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		t := v.Token(p.Token)
		if t == nil {
			return muster.Errorf(muster.Unauthenticated, "the join token was revoked: make one with muster token create")
		}
		var err error
		if issued, err = r.reissued(v, w, t, newcomer{in.NodeID, machine, secret}); issued != nil || err != nil {
			return err
		}
		if t.Left() == 0 {
			return muster.Errorf(muster.Forbidden, "the join token %s has been used by %s: make another one with muster token create", t.ID, usersOf(t))
		}
		if err := r.nameIsFree(v, in.NodeID); err != nil {
			return err
		}
		issued = r.newKey(v, p, "node "+string(in.NodeID), muster.NodeAgent, secret)
		issued.NodeUID, issued.Scope = fresh, muster.KeyScope{Nodes: []string{string(in.NodeID)}}
		issued.NodeRole = t.Role
		w.Key(issued, "its node joined")
		next := t.Clone()
		next.Used = append(next.Used, muster.TokenUse{NodeID: in.NodeID, Key: issued.ID, Machine: machine, At: stamp(r.opts.Now()), Addr: p.Addr})
		w.Token(next, "used by "+string(in.NodeID))
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := &muster.Joined{NodeUID: issued.NodeUID, Key: keyText(issued.ID, secret), Revision: revision}
	if r.Certificates != nil {
		if out.Certificate, out.CA, err = r.Certificates.Issue(in.CSR, issued.NodeUID); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// newcomer is a machine that joins, and the secret that it is to get.
type newcomer struct {
	id      muster.NodeID
	machine string
	secret  auth.Secret
}

// reissued gives the key that a machine got by the token, and whose text it may not
// know, a new secret; nil when it got none that is still good. CONFLICT: it joined by
// another name.
func (r *Registry) reissued(v View, w *Writes, t *muster.JoinToken, who newcomer) (*muster.AccessKey, error) {
	for _, use := range t.Used {
		k := v.Key(use.Key)
		if use.Machine != who.machine || k == nil || r.KeyStatus(k) != muster.KeyActive {
			continue
		}
		if use.NodeID != who.id {
			return nil, muster.Errorf(muster.Conflict, "this machine has joined as node %s: start its agent with --id %s, or run muster node forget %s first", use.NodeID, use.NodeID, use.NodeID)
		}
		return r.rotate(w, k, who.secret, 0), nil
	}
	return nil, nil
}

func usersOf(t *muster.JoinToken) string {
	names := make([]string, 0, len(t.Used))
	for _, use := range t.Used {
		names = append(names, string(use.NodeID))
	}
	return strings.Join(names[:min(len(names), 5)], ", ")
}

// nameIsFree refuses a name that a node has or that is kept for one.
func (r *Registry) nameIsFree(v View, id muster.NodeID) error {
	const choice = "if this is that machine, reinstalled, run muster node forget %s first; if not, give this one another --id"
	for n := range rows[*muster.Node](v, tableNode, byName, id) {
		if !n.Forgotten {
			return muster.Errorf(muster.AlreadyExists, "the name %s is that of the node at %s, last seen %s: "+choice, id, n.Addr, r.LastSeen(n).Format(time.RFC3339), id)
		}
	}
	for k := range r.awaited(v, string(id)) {
		return muster.Errorf(muster.AlreadyExists, "the name %s is that of a machine that joined at %s and is not in the registry: "+choice, id, k.CreatedAt.Format(time.RFC3339), id)
	}
	return nil
}

// awaited walks the good keys of nodes of that id or uid that have joined and are not in
// the registry, or no longer.
func (r *Registry) awaited(v View, id string) iter.Seq[*muster.AccessKey] {
	return where(v.Keys(), func(k *muster.AccessKey) bool {
		return k.NodeUID != "" && (string(k.NodeUID) == id || slices.Contains(k.Scope.Nodes, id)) &&
			r.KeyStatus(k) == muster.KeyActive && v.NodeByUID(k.NodeUID) == nil
	})
}

// machineOf tells machines apart by their public key, as a hash of it. INVALID, field
// csr: no certificate can be issued for it, which is found out before a use of the token is spent.
func machineOf(csr string) (string, error) {
	public, err := auth.ParseRequest(csr)
	if err != nil {
		return "", err
	}
	pin, err := auth.PinOfKey(public)
	return pin.String(), err
}

// RenewCertificate gives a node that calls with its own key a new certificate.
func (r *Registry) RenewCertificate(ctx context.Context, csr string) (*muster.Certificates, error) {
	p := muster.PrincipalOf(ctx)
	switch {
	case p.NodeUID == "":
		return nil, muster.Errorf(muster.Forbidden, "the key %s is not a node's own: only a node that joined has a certificate", p.Name)
	case r.Certificates == nil:
		return nil, muster.Errorf(muster.Conflict, "this server has no TLS, and so no certificates")
	}
	if n := r.View().NodeByUID(p.NodeUID); n != nil && n.Status == muster.Removed {
		return nil, muster.Errorf(muster.Forbidden, "node %s was removed by an operator: it gets no certificate", n.ID)
	}
	certificate, ca, err := r.Certificates.Issue(csr, p.NodeUID)
	if err != nil {
		return nil, err
	}
	return &muster.Certificates{Certificate: certificate, CA: ca}, nil
}
