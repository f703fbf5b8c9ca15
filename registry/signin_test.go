package registry_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
)

// key makes an access key and returns it with a context of its holder.
func (w *world) key(t *testing.T, name string, role muster.Role) (*muster.AccessKey, context.Context) {
	t.Helper()
	k, text, _, err := w.CreateAccessKey(ctx, muster.CreateAccessKeyInput{Name: name, Role: role})
	if err != nil {
		t.Fatal(err)
	}
	return k, w.holder(t, text)
}

func (w *world) holder(t *testing.T, text string) context.Context {
	t.Helper()
	p, err := w.Authenticate(text, "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	return muster.WithPrincipal(context.Background(), p)
}

// session signs a browser in as the holder.
func (w *world) session(t *testing.T, holder context.Context) (text string, session context.Context) {
	t.Helper()
	code, _, err := w.CreateSignIn(holder, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = w.RedeemSignIn(context.Background(), code, "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	return text, w.holder(t, text)
}

func TestSession_EndsWithTheKeyThatItWasSignedInWith(t *testing.T) {
	overlap := time.Hour
	for _, test := range []struct {
		name string
		end  func(w *world, k *muster.AccessKey) error
		good bool
	}{
		{"revoked", func(w *world, k *muster.AccessKey) error { _, _, err := w.RevokeAccessKey(ctx, k.ID); return err }, false},
		{"rotated", func(w *world, k *muster.AccessKey) error { _, _, _, err := w.RotateAccessKey(ctx, k.ID, 0); return err }, false},
		{"rotated with an overlap", func(w *world, k *muster.AccessKey) error {
			_, _, _, err := w.RotateAccessKey(ctx, k.ID, overlap)
			return err
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := open(t, setup{})
			k, holder := w.key(t, "carol", muster.Operator)
			text, session := w.session(t, holder)
			within, _ := w.session(t, session)
			_, other := w.key(t, "dave", muster.Operator)
			unconcerned, _ := w.session(t, other)
			if got := w.View().Key(muster.PrincipalOf(session).Key); got.Parent != k.ID || got.CreatedBy != "carol" {
				t.Fatalf("the session is %+v", got)
			}
			if err := test.end(w, k); err != nil {
				t.Fatal(err)
			}
			for name, text := range map[string]string{"the session": text, "one that began in it": within} {
				if _, err := w.Authenticate(text, ""); (err == nil) != test.good {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := w.Authenticate(unconcerned, ""); err != nil {
				t.Errorf("a session of another key: %v", err)
			}
		})
	}
}

func TestSession_CodeIsGoodForNothingOnceItsKeyIsRevoked(t *testing.T) {
	w := open(t, setup{})
	k, holder := w.key(t, "carol", muster.Viewer)
	code, _, err := w.CreateSignIn(holder, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.RevokeAccessKey(ctx, k.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.RedeemSignIn(context.Background(), code, "")
	wantCode(t, err, muster.Unauthenticated)
}

func TestSession_ThereAreOnlySoMany(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		_, holder := w.key(t, "carol", muster.Viewer)
		_, other := w.key(t, "dave", muster.Viewer)
		const most = 100
		for range most {
			w.session(t, holder)
		}
		code, _, err := w.CreateSignIn(holder, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.RedeemSignIn(context.Background(), code, "")
		wantCode(t, err, muster.Limit)
		w.session(t, other)
		time.Sleep(13 * time.Hour)
		w.session(t, holder)
		time.Sleep(37 * time.Hour) // they are not kept for as long as the audit
		synctest.Wait()
		c, err := w.AccessKeys(muster.PageInput{})
		if err != nil || c.TotalCount() != 2 {
			t.Errorf("%d keys are listed, %v", c.TotalCount(), err)
		}
	})
}

func TestSignIn_CodesThatWaitAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		_, holder := w.key(t, "carol", muster.Viewer)
		const most = 256
		for range most {
			if _, _, err := w.CreateSignIn(holder, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		_, _, err := w.CreateSignIn(holder, time.Minute)
		wantCode(t, err, muster.Limit)
		time.Sleep(time.Minute)
		code, expires, err := w.CreateSignIn(holder, time.Minute)
		if err != nil || !expires.Equal(time.Now().Add(time.Minute)) {
			t.Fatal(expires, err)
		}
		time.Sleep(time.Minute)
		_, err = w.RedeemSignIn(context.Background(), code, "") // too late
		wantCode(t, err, muster.Unauthenticated)
		for _, ttl := range []time.Duration{0, -1, 2 * time.Hour} {
			_, _, err := w.CreateSignIn(holder, ttl)
			wantCode(t, err, muster.Invalid)
		}
	})
}

func TestSignOut_EndsASessionAlone(t *testing.T) {
	w := open(t, setup{})
	key, holder := w.key(t, "carol", muster.Viewer)
	wantCode(t, w.SignOut(holder), muster.Conflict)
	text, session := w.session(t, holder)
	other, _ := w.session(t, holder)
	if err := w.SignOut(session); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.SignOut(session), muster.Unauthenticated)
	_, err := w.Authenticate(text, "")
	wantCode(t, err, muster.Unauthenticated)
	if _, err := w.Authenticate(other, ""); err != nil {
		t.Errorf("the other session of the key: %v", err)
	}
	if !w.Admitted(muster.PrincipalOf(holder)) {
		t.Errorf("the key %s was revoked too", key.ID)
	}
}
