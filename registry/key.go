package registry

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// AccessKeys returns a page of the keys in order of their number.
func (r *Registry) AccessKeys(page muster.PageInput) (*muster.AccessKeyConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := r.View()
	from := rowsFrom[*muster.AccessKey](v, tableKey, byID, muster.KeyID(after))
	if after == "" {
		from = v.Keys()
	}
	keys, info := take(where(from, func(k *muster.AccessKey) bool { return string(k.ID) != after }), limit, after,
		func(k *muster.AccessKey) string { return string(k.ID) })
	c := &muster.AccessKeyConnection{Edges: make([]*muster.AccessKeyEdge, 0, len(keys)), PageInfo: info, Count: func() int { return count(v.Keys()) }}
	for _, k := range keys {
		c.Edges = append(c.Edges, &muster.AccessKeyEdge{Cursor: edge(string(k.ID)), Node: k})
	}
	return c, nil
}

// KeyStatus is whether a key opens anything now.
func (r *Registry) KeyStatus(k *muster.AccessKey) muster.KeyStatus { return k.StatusAt(r.opts.Now()) }

// CreateAccessKey makes a key and returns it with its text, which nobody can read
// again. The same requestId gives the same key, and no text.
func (r *Registry) CreateAccessKey(ctx context.Context, in muster.CreateAccessKeyInput) (k *muster.AccessKey, text string, revision int64, err error) {
	if err := in.Validate(r.opts.Now()); err != nil {
		return nil, "", 0, err
	}
	p := muster.PrincipalOf(ctx)
	request := r.newOnce(p, in.RequestID, in)
	secret := auth.NewSecret()
	made := false
	revision, err = r.mutate(ctx, func(v View, w *Writes) error {
		earlier, err := request.earlier(v)
		if err != nil {
			return err
		}
		if made = earlier == ""; !made {
			if k = v.Key(muster.KeyID(earlier)); k == nil {
				return muster.Errorf(muster.NotFound, "the key %s that this requestId made is gone: use a new requestId", earlier)
			}
			return nil
		}
		k = r.newKey(v, p, in.Name, in.Role, secret)
		if in.Scope != nil {
			k.Scope = *in.Scope
		}
		if in.ExpiresAt != nil {
			k.ExpiresAt = new(stamp(*in.ExpiresAt))
		}
		w.Key(k, "created")
		request.record(w, string(k.ID))
		return nil
	})
	if err != nil {
		return nil, "", 0, err
	}
	if made {
		text = keyText(k.ID, secret)
	}
	return k, text, revision, nil
}

func (r *Registry) newKey(v View, by muster.Principal, name string, role muster.Role, secret auth.Secret) *muster.AccessKey {
	return &muster.AccessKey{
		ID: muster.KeyIDOf(v.meta().sequences[muster.KeySequence] + 1), Name: name, Role: role,
		Hash: auth.Hash(secret), Secret: 1, CreatedAt: stamp(r.opts.Now()), CreatedBy: by.Name,
	}
}

func keyText(id muster.KeyID, secret auth.Secret) string {
	return auth.Key{ID: string(id), Secret: secret}.Text()
}

// RevokeAccessKey ends a key at once and for good, with every stream that it opened.
// Revoking one that is revoked changes nothing.
func (r *Registry) RevokeAccessKey(ctx context.Context, id muster.KeyID) (*muster.AccessKey, int64, error) {
	return r.changeKey(ctx, id, func(v View, w *Writes, k *muster.AccessKey) (*muster.AccessKey, error) {
		if k.RevokedAt != nil {
			return k, nil
		}
		if r.lastAdmin(v, k) {
			return nil, muster.Errorf(muster.Conflict, "%s is the last ADMIN key that is good: create another one first, or nobody could create any", k.ID)
		}
		r.endSessions(v, w, k.ID, "its key was revoked")
		return r.revoke(w, k, "revoked"), nil
	})
}

func (r *Registry) revoke(w *Writes, k *muster.AccessKey, reason string) *muster.AccessKey {
	next := k.Clone()
	next.RevokedAt = new(stamp(r.opts.Now()))
	next.FormerHash, next.FormerUntil = "", nil
	w.Key(next, reason)
	return next
}

// lastAdmin reports whether no other ADMIN key is good for longer than a session.
func (r *Registry) lastAdmin(v View, k *muster.AccessKey) bool {
	if k.Role != muster.Admin || k.ExpiresAt != nil {
		return false
	}
	for other := range v.Keys() {
		if other.ID != k.ID && other.Role == muster.Admin && other.ExpiresAt == nil && other.RevokedAt == nil {
			return false
		}
	}
	return true
}

// RotateAccessKey gives a key a new secret. The one that it has stays good for the
// overlap, so that its holders can change over; 0 ends it, and its streams, at once.
func (r *Registry) RotateAccessKey(ctx context.Context, id muster.KeyID, overlap time.Duration) (k *muster.AccessKey, text string, revision int64, err error) {
	if overlap < 0 || overlap > muster.MaxKeyOverlap {
		return nil, "", 0, muster.InvalidField("overlap", "%s is not between 0s and %s", overlap, muster.MaxKeyOverlap)
	}
	secret := auth.NewSecret()
	k, revision, err = r.changeKey(ctx, id, func(v View, w *Writes, k *muster.AccessKey) (*muster.AccessKey, error) {
		if status := r.KeyStatus(k); status != muster.KeyActive {
			return nil, muster.Errorf(muster.Conflict, "the key %s is %s: create a new one", k.ID, status)
		}
		if overlap == 0 {
			r.endSessions(v, w, k.ID, "its key was rotated")
		}
		return r.rotate(w, k, secret, overlap), nil
	})
	if err != nil {
		return nil, "", 0, err
	}
	return k, keyText(k.ID, secret), revision, nil
}

func (r *Registry) rotate(w *Writes, k *muster.AccessKey, secret auth.Secret, overlap time.Duration) *muster.AccessKey {
	next := k.Clone()
	next.FormerHash, next.FormerUntil = "", nil
	if overlap > 0 {
		next.FormerHash, next.FormerUntil = k.Hash, new(stamp(r.opts.Now()).Add(overlap))
	}
	next.Hash = auth.Hash(secret)
	next.Secret++
	w.Key(next, "rotated")
	return next
}

func (r *Registry) changeKey(ctx context.Context, id muster.KeyID, change func(View, *Writes, *muster.AccessKey) (*muster.AccessKey, error)) (*muster.AccessKey, int64, error) {
	if err := muster.CheckID("id", string(id)); err != nil {
		return nil, 0, err
	}
	var out *muster.AccessKey
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		k := v.Key(id)
		if k == nil {
			return muster.Errorf(muster.NotFound, "there is no key %q: see the list of keys", id)
		}
		var err error
		out, err = change(v, w, k)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// RecoverAdminKey makes another ADMIN key of that name, for who can start the server but
// has no key any more, and returns its text.
func (r *Registry) RecoverAdminKey(ctx context.Context, name string) (string, error) {
	secret := auth.NewSecret()
	by := muster.Principal{Name: itself.Name, Action: "newAdminKey"}
	var made *muster.AccessKey
	_, err := r.commits.submit(ctx, itself, r.audited(by, func(v View, w *Writes) error {
		made = r.newKey(v, by, name, muster.Admin, secret)
		w.Key(made, "created at a start that asked for it")
		return nil
	}))
	if err != nil {
		return "", err
	}
	return keyText(made.ID, secret), nil
}

// EnsureAdminKey makes an ADMIN key of that name when there is none that is good, and
// gives one that was never used a new secret: nobody has that. It returns the key's text,
// or "" when nothing was made.
func (r *Registry) EnsureAdminKey(ctx context.Context, name string) (string, error) {
	secret := auth.NewSecret()
	var made *muster.AccessKey
	_, err := r.commits.submit(ctx, itself, func(v View, w *Writes) error {
		made = nil
		for k := range v.Keys() {
			if k.Role != muster.Admin || k.ExpiresAt != nil || k.RevokedAt != nil {
				continue
			}
			if k.Name == name && r.LastUsed(k) == nil {
				made = r.rotate(w, k, secret, 0)
			}
			return nil
		}
		made = r.newKey(v, muster.Principal{Name: itself.Name}, name, muster.Admin, secret)
		w.Key(made, "created at the first start")
		return nil
	})
	if err != nil || made == nil {
		return "", err
	}
	return keyText(made.ID, secret), nil
}
