package registry

import (
	"context"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

const (
	// maxSignInTTL is how long a code is good at most, DefaultSignInTTL when nothing is said.
	maxSignInTTL = time.Hour
	// DefaultSignInTTL is how long a code is good when nothing is said.
	DefaultSignInTTL = 10 * time.Minute
	// sessionTTL is how long the key is good that a code is exchanged for.
	sessionTTL = 12 * time.Hour
	// maxSessions is how many sessions of a key there may be, sessionKept how long one is
	// listed after its end.
	maxSessions = 100
	sessionKept = 24 * time.Hour
	// maxSignIns is how many codes may wait.
	maxSignIns = 256
)

// signIns are codes that sign a browser in once. They are not part of the state: a
// restart ends them.
type signIns struct {
	mu      sync.Mutex
	waiting map[string]signIn // by the code's hash
}

type signIn struct {
	by      muster.Principal
	expires time.Time
}

// CreateSignIn returns a code that signs a browser in once, with the caller's rights.
// LIMIT: too many wait already.
func (r *Registry) CreateSignIn(ctx context.Context, ttl time.Duration) (code string, expires time.Time, err error) {
	if ttl <= 0 || ttl > maxSignInTTL {
		return "", expires, muster.InvalidField("ttl", "%s is not between 1s and %s", ttl, maxSignInTTL)
	}
	secret, now := auth.NewSecret(), r.opts.Now()
	expires = stamp(now).Add(ttl)
	hash := auth.Hash(secret)
	if err := r.signIns.add(hash, signIn{muster.PrincipalOf(ctx), expires}, now); err != nil {
		return "", expires, err
	}
	// It changes nothing, and is for the audit all the same.
	if _, err := r.mutate(ctx, func(View, *Writes) error { return nil }); err != nil {
		r.signIns.take(hash)
		return "", expires, err
	}
	return auth.Key{ID: "sign-in", Secret: secret}.Text(), expires, nil
}

// add lets a code wait, and drops those that have ended.
func (c *signIns) add(hash string, s signIn, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for hash, s := range c.waiting {
		if !now.Before(s.expires) {
			delete(c.waiting, hash)
		}
	}
	if len(c.waiting) >= maxSignIns {
		e := muster.Errorf(muster.Limit, "%d sign-in codes wait to be used, which is the limit: use one, or wait until some have ended", maxSignIns)
		e.Details = map[string]any{"limit": "signIns"}
		return e
	}
	if c.waiting == nil {
		c.waiting = map[string]signIn{}
	}
	c.waiting[hash] = s
	return nil
}

// take takes a code out: it is good once.
func (c *signIns) take(hash string) (signIn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.waiting[hash]
	delete(c.waiting, hash)
	return s, ok
}

// RedeemSignIn exchanges a code for the text of an access key that is good for 12
// hours. UNAUTHENTICATED: it is none, was used, or has ended.
func (r *Registry) RedeemSignIn(ctx context.Context, code, addr string) (string, error) {
	ended := muster.Errorf(muster.Unauthenticated, "this link has been used or is too old: make a new one with muster playground")
	presented, err := auth.ParseKey(code)
	if err != nil {
		return "", ended
	}
	s, ok := r.signIns.take(auth.Hash(presented.Secret))
	if !ok || !r.opts.Now().Before(s.expires) {
		return "", ended
	}
	secret := auth.NewSecret()
	by := s.by
	by.Addr, by.Action = addr, "signIn"
	var k *muster.AccessKey
	_, err = r.mutate(muster.WithPrincipal(ctx, by), func(v View, w *Writes) error {
		if !r.admitted(v, by) { // revoked since, perhaps in this very batch
			return ended
		}
		if n := r.sessions(v, sessionParent(v, by)); n >= maxSessions {
			e := muster.Errorf(muster.Limit, "%s has %d sessions, which is the limit: sign out in some browsers, or wait until some have ended", by.Name, n)
			e.Details = map[string]any{"limit": "sessions"}
			return e
		}
		k = r.newKey(v, by, "browser", by.Role, secret)
		k.Scope, k.ExpiresAt, k.Parent = by.Scope, new(stamp(r.opts.Now()).Add(sessionTTL)), sessionParent(v, by)
		if !by.Expires.IsZero() && by.Expires.Before(*k.ExpiresAt) {
			k.ExpiresAt = new(stamp(by.Expires))
		}
		w.Key(k, "signed in with a code of "+by.Name)
		return nil
	})
	if err != nil {
		return "", err
	}
	return keyText(k.ID, secret), nil
}

// sessionParent is the key whose end is that of a session: who signs in from within a
// session does it with the key of that one.
func sessionParent(v View, by muster.Principal) muster.KeyID {
	if k := v.Key(by.Key); k != nil && k.Parent != "" {
		return k.Parent
	}
	return muster.KeyID(by.Identity())
}

// sessions is how many good ones a key has.
func (r *Registry) sessions(v View, parent muster.KeyID) int {
	now := r.opts.Now()
	return count(where(v.Keys(), func(k *muster.AccessKey) bool { return k.Parent == parent && k.StatusAt(now) == muster.KeyActive }))
}

// SignOut ends the session that the caller presents. CONFLICT: it is none, but a key
// that others may hold too.
func (r *Registry) SignOut(ctx context.Context) error {
	_, _, err := r.changeKey(ctx, muster.PrincipalOf(ctx).Key, func(_ View, w *Writes, k *muster.AccessKey) (*muster.AccessKey, error) {
		if k.Parent == "" {
			return nil, muster.Errorf(muster.Conflict, "the key %s (%s) is no session of a browser, and stays good: forget it, or have an ADMIN revoke it", k.ID, k.Name)
		}
		return r.revoke(w, k, "signed out"), nil
	})
	return err
}

// endSessions revokes the sessions that were signed in with a key.
func (r *Registry) endSessions(v View, w *Writes, parent muster.KeyID, reason string) {
	now := r.opts.Now()
	for k := range v.Keys() {
		if k.Parent == parent && k.StatusAt(now) == muster.KeyActive {
			r.revoke(w, k, reason)
		}
	}
}
