package registry

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// usedEvery is how exactly is known when a key was last used.
const usedEvery = time.Hour

// Authenticate says who presents a key or a join token. UNAUTHENTICATED: nobody;
// only who has the right secret is told that the key was revoked or has expired. It
// reads memory only.
//
// Secrets are never compared themselves, but their hashes, by subtle.ConstantTimeCompare:
// the time that it takes says nothing of either.
func (r *Registry) Authenticate(text, addr string) (muster.Principal, error) {
	if strings.HasPrefix(text, "muster-join_") {
		return r.authenticateToken(text, addr)
	}
	k, secret, err := r.keyOf(text)
	if err != nil {
		return muster.Principal{}, err
	}
	r.used.stamp(k.ID, r.opts.Now())
	return principalOf(k, secret, addr), nil
}

// keyOf returns the good key of a text, and which of its secrets that has.
func (r *Registry) keyOf(text string) (*muster.AccessKey, int64, error) {
	presented, err := auth.ParseKey(text)
	if err != nil {
		return nil, 0, err
	}
	k, now := r.View().Key(muster.KeyID(presented.ID)), r.opts.Now()
	hash := ""
	if k != nil {
		hash = k.Hash
	}
	secret := int64(0)
	switch {
	case auth.Equal(hash, presented.Secret):
		secret = k.Secret
	case k != nil && k.FormerUntil != nil && now.Before(*k.FormerUntil) && auth.Equal(k.FormerHash, presented.Secret):
		secret = k.Secret - 1
	default:
		return nil, 0, muster.Errorf(muster.Unauthenticated, "the server does not know this key: it is another cluster's, or its secret was replaced; sign in with one of this cluster's")
	}
	switch k.StatusAt(now) {
	case muster.KeyRevoked:
		return nil, 0, muster.Errorf(muster.Unauthenticated, "the key %s (%s) was revoked: %s", k.ID, k.Name, renewal(k))
	case muster.KeyExpired:
		return nil, 0, muster.Errorf(muster.Unauthenticated, "the key %s (%s) has expired: %s", k.ID, k.Name, renewal(k))
	}
	return k, secret, nil
}

// renewal is what the holder of a key that has ended can do.
func renewal(k *muster.AccessKey) string {
	if k.NodeUID != "" {
		return "to let this machine in again, run muster token create where there is an ADMIN key, and here muster agent --join TOKEN@HOST"
	}
	return "ask an ADMIN for a new one"
}

// Opens reports whether a text is that of a good key. It does not count as a use.
func (r *Registry) Opens(text string) bool {
	_, _, err := r.keyOf(text)
	return err == nil
}

func principalOf(k *muster.AccessKey, secret int64, addr string) muster.Principal {
	p := muster.Principal{Key: k.ID, Name: k.Name, Role: k.Role, Scope: k.Scope, NodeUID: k.NodeUID, Secret: secret, Addr: addr}
	if k.ExpiresAt != nil {
		p.Expires = *k.ExpiresAt
	}
	if secret < k.Secret && (p.Expires.IsZero() || k.FormerUntil.Before(p.Expires)) {
		p.Expires = *k.FormerUntil
	}
	return p
}

// Admitted reports whether a principal that was authenticated earlier still would be.
func (r *Registry) Admitted(p muster.Principal) bool { return r.admitted(r.View(), p) }

func (r *Registry) admitted(v View, p muster.Principal) bool {
	now := r.opts.Now()
	if p.Token != "" {
		t := v.Token(p.Token)
		return t != nil && now.Before(t.ExpiresAt)
	}
	if p.Key == "" {
		return true // the server itself, or where no key is asked for
	}
	k := v.Key(p.Key)
	if k == nil || k.StatusAt(now) != muster.KeyActive {
		return false
	}
	return p.Secret == k.Secret || p.Secret == k.Secret-1 && k.FormerUntil != nil && now.Before(*k.FormerUntil)
}

func (r *Registry) authenticateToken(text, addr string) (muster.Principal, error) {
	presented, err := auth.ParseJoinToken(text)
	if err != nil {
		return muster.Principal{}, err
	}
	t := r.View().Token(muster.TokenID(presented.ID))
	hash := ""
	if t != nil {
		hash = t.Hash
	}
	if !auth.Equal(hash, presented.Secret) {
		return muster.Principal{}, muster.Errorf(muster.Unauthenticated, "the server does not know this join token: it is another cluster's, or has been revoked; make one with muster token create")
	}
	if !r.opts.Now().Before(t.ExpiresAt) {
		return muster.Principal{}, muster.Errorf(muster.Unauthenticated, "the join token %s expired at %s: make one with muster token create", t.ID, t.ExpiresAt.Format(time.RFC3339))
	}
	return muster.Principal{Token: t.ID, Name: "token " + string(t.ID), Role: muster.JoiningNode, Addr: addr, Expires: t.ExpiresAt}, nil
}

// uses is when each key was last used, to the hour. It is not part of the state.
type uses struct {
	mu        sync.RWMutex
	at        map[muster.KeyID]time.Time
	unflushed map[muster.KeyID]time.Time
}

func (u *uses) stamp(id muster.KeyID, now time.Time) {
	if now.Sub(u.of(id)) < usedEvery {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at, u.unflushed = map[muster.KeyID]time.Time{}, map[muster.KeyID]time.Time{}
	}
	at := stamp(now).Truncate(time.Minute)
	u.at[id], u.unflushed[id] = at, at
}

func (u *uses) of(id muster.KeyID) time.Time {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return u.at[id]
}

func (u *uses) forget(id muster.KeyID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.at, id)
	delete(u.unflushed, id)
}

func (u *uses) take() map[muster.KeyID]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.unflushed
	u.unflushed = map[muster.KeyID]time.Time{}
	return taken
}

// LastUsed returns when a key was last used, to the hour; nil: never.
func (r *Registry) LastUsed(k *muster.AccessKey) *time.Time {
	if at := r.used.of(k.ID); !at.IsZero() {
		return &at
	}
	return k.LastUsedAt
}

func (r *Registry) flushLastUsed(ctx context.Context) error {
	used := r.used.take()
	if len(used) == 0 {
		return nil
	}
	err := r.Store.SaveLastUsed(ctx, used)
	if err != nil {
		r.used.mu.Lock()
		defer r.used.mu.Unlock()
		for id, at := range used {
			if r.used.unflushed[id].IsZero() {
				r.used.unflushed[id] = at
			}
		}
	}
	return err
}
