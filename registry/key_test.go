package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/auth"
	"github.com/muster-cloud/muster/registry/store"
)

// made makes an access key and returns it with its text.
func (w *world) made(t *testing.T, in muster.CreateAccessKeyInput) (*muster.AccessKey, string) {
	t.Helper()
	k, text, _, err := w.CreateAccessKey(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	return k, text
}

// opens reports what a text opens: nothing, or a good key.
func opens(w *world, text string) error {
	_, err := w.Authenticate(text, "192.0.2.1")
	return err
}

func TestKey_CreatedAndPresented(t *testing.T) {
	w := open(t, setup{})
	scope := &muster.KeyScope{Nodes: []string{"web-*"}}
	k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Operator, Scope: scope})
	if k.ID != "k-1" || k.CreatedBy != "alice" || !strings.HasPrefix(text, "muster_k-1_") {
		t.Fatalf("key %+v, text %s", k, text)
	}
	p, err := w.Authenticate(" "+text+"\n", "192.0.2.1")
	if err != nil || p.Key != "k-1" || p.Name != "ci" || p.Role != muster.Operator || p.Addr != "192.0.2.1" || p.Scope.Nodes[0] != "web-*" || !p.Expires.IsZero() {
		t.Fatalf("presented: %+v, %v", p, err)
	}
	other := auth.Key{ID: "k-1", Secret: auth.NewSecret()}.Text()
	nobody := auth.Key{ID: "k-99", Secret: auth.NewSecret()}.Text()
	for name, c := range map[string]struct{ text, says string }{
		"another secret":         {other, "does not know this key"},
		"another cluster's":      {nobody, "does not know this key"},
		"with a typo":            {text[:len(text)-1] + "~", "typo"},
		"cut off":                {text[:30], "typo"},
		"a join token":           {auth.JoinToken{ID: "t-1", Secret: auth.NewSecret()}.Text(), "does not know this join token"},
		"nothing":                {"", "not an access key"},
		"somebody else's secret": {"hunter2", "not an access key"},
	} {
		err := opens(w, c.text)
		wantCode(t, err, muster.Unauthenticated)
		if !strings.Contains(err.Error(), c.says) || c.text != "" && strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A stranger learns the same of a key that there is and of one that there is not.
	if a, b := opens(w, other), opens(w, nobody); a.Error() != b.Error() {
		t.Errorf("%v, and %v", a, b)
	}
}

func TestKey_RefusesInputs(t *testing.T) {
	w := open(t, setup{})
	soon := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		in    muster.CreateAccessKeyInput
		field string
	}{
		"no name":                    {muster.CreateAccessKeyInput{Role: muster.Viewer}, "name"},
		"a name with a space":        {muster.CreateAccessKeyInput{Name: "a b", Role: muster.Viewer}, "name"},
		"a key's text as the name":   {muster.CreateAccessKeyInput{Name: auth.Key{ID: "k-1", Secret: auth.NewSecret()}.Text(), Role: muster.Viewer}, "name"},
		"no role":                    {muster.CreateAccessKeyInput{Name: "a"}, "role"},
		"the role of who joins":      {muster.CreateAccessKeyInput{Name: "a", Role: muster.JoiningNode}, "role"},
		"ended already":              {muster.CreateAccessKeyInput{Name: "a", Role: muster.Viewer, ExpiresAt: new(time.Now())}, "expiresAt"},
		"in the year 10000":          {muster.CreateAccessKeyInput{Name: "a", Role: muster.Viewer, ExpiresAt: new(time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("", -7200)))}, "expiresAt"},
		"a NODE key for no node":     {muster.CreateAccessKeyInput{Name: "a", Role: muster.NodeAgent, ExpiresAt: &soon}, "scope.nodes"},
		"an ADMIN with a scope":      {muster.CreateAccessKeyInput{Name: "a", Role: muster.Admin, Scope: &muster.KeyScope{Nodes: []string{"a"}}}, "scope"},
		"clusters of an OPERATOR":    {muster.CreateAccessKeyInput{Name: "a", Role: muster.Operator, Scope: &muster.KeyScope{Clusters: []string{"a"}}}, "scope"},
		"nodes of a REGISTRAR":       {muster.CreateAccessKeyInput{Name: "a", Role: muster.Registrar, Scope: &muster.KeyScope{Nodes: []string{"a"}}}, "scope.nodes"},
		"no nodes, which is all":     {muster.CreateAccessKeyInput{Name: "a", Role: muster.Operator, Scope: &muster.KeyScope{Nodes: []string{}}}, "scope.nodes"},
		"an empty pattern":           {muster.CreateAccessKeyInput{Name: "a", Role: muster.Operator, Scope: &muster.KeyScope{Nodes: []string{""}}}, "scope.nodes"},
		"a pattern of another kind":  {muster.CreateAccessKeyInput{Name: "a", Role: muster.Operator, Scope: &muster.KeyScope{Nodes: []string{"[a-z]"}}}, "scope.nodes"},
		"a pattern with a NUL":       {muster.CreateAccessKeyInput{Name: "a", Role: muster.Operator, Scope: &muster.KeyScope{Nodes: []string{"a\x00"}}}, "scope.nodes"},
		"too many patterns":          {muster.CreateAccessKeyInput{Name: "a", Role: muster.Operator, Scope: &muster.KeyScope{Nodes: strings.Split(strings.Repeat("a,", 40)+"a", ",")}}, "scope.nodes"},
		"a requestId that is a book": {muster.CreateAccessKeyInput{Name: "a", Role: muster.Viewer, RequestID: strings.Repeat("a", 200)}, "requestId"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := w.CreateAccessKey(ctx, c.in)
			wantCode(t, err, muster.Invalid)
			if e := err.(*muster.Error); e.Field != c.field || len(c.in.Name) > 40 && strings.Contains(e.Message, c.in.Name) {
				t.Errorf("field %q: %v", e.Field, err)
			}
		})
	}
}

func TestKey_RequestID(t *testing.T) {
	w := open(t, setup{})
	in := muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer, RequestID: "r1"}
	first, text := w.made(t, in)
	again, none := w.made(t, in)
	if again.ID != first.ID || text == "" || none != "" {
		t.Errorf("%s with a text of %d bytes, then %s with %d", first.ID, len(text), again.ID, len(none))
	}
	in.Role = muster.Admin
	_, _, _, err := w.CreateAccessKey(ctx, in)
	wantCode(t, err, muster.Conflict)
	if k, text, _, err := w.CreateAccessKey(as("bob"), in); err != nil || k.ID == first.ID || text == "" {
		t.Errorf("somebody else's requestId: %v, %v", k, err)
	}
}

func TestKey_Revoked(t *testing.T) {
	told := 0
	w := open(t, setup{keysChanged: func() { told++ }})
	k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Operator})
	holder := w.holder(t, text)
	w.join(t, "n1", 4, 4096)
	before := told
	got, _, err := w.RevokeAccessKey(ctx, k.ID)
	if err != nil || got.RevokedAt == nil || w.KeyStatus(got) != muster.KeyRevoked {
		t.Fatalf("%+v, %v", got, err)
	}
	if told != before+1 {
		t.Errorf("told %d times that keys changed, want once", told-before)
	}
	err = opens(w, text)
	wantCode(t, err, muster.Unauthenticated)
	if !strings.Contains(err.Error(), "k-1 (ci) was revoked") {
		t.Errorf("its holder is told: %v", err)
	}
	if w.Admitted(muster.PrincipalOf(holder)) {
		t.Error("who was let in before still is")
	}
	// What was under way when it was revoked does not happen any more.
	_, _, err = w.LaunchInstance(holder, launch(muster.Nano))
	wantCode(t, err, muster.Unauthenticated)
	again, _, err := w.RevokeAccessKey(ctx, k.ID)
	if err != nil || again.Revision != got.Revision {
		t.Errorf("a second time: %+v, %v", again, err)
	}
	for _, f := range []func(muster.KeyID) error{
		func(id muster.KeyID) error { _, _, err := w.RevokeAccessKey(ctx, id); return err },
		func(id muster.KeyID) error { _, _, _, err := w.RotateAccessKey(ctx, id, 0); return err },
	} {
		wantCode(t, f("k-77"), muster.NotFound)
		wantCode(t, f(""), muster.Invalid)
		err := f(muster.KeyID(text))
		wantCode(t, err, muster.Invalid)
		if strings.Contains(err.Error(), text) {
			t.Errorf("the text that was pasted is repeated: %v", err)
		}
	}
	_, _, _, err = w.RotateAccessKey(ctx, k.ID, 0)
	wantCode(t, err, muster.Conflict)
}

func TestKey_TheLastAdminStays(t *testing.T) {
	w := open(t, setup{})
	first, _ := w.made(t, muster.CreateAccessKeyInput{Name: "a", Role: muster.Admin})
	soon, _ := w.made(t, muster.CreateAccessKeyInput{Name: "b", Role: muster.Admin, ExpiresAt: new(time.Now().Add(time.Hour))})
	_, _, err := w.RevokeAccessKey(ctx, first.ID) // the other one ends by itself
	wantCode(t, err, muster.Conflict)
	if _, _, err := w.RevokeAccessKey(ctx, soon.ID); err != nil {
		t.Error(err)
	}
	second, _ := w.made(t, muster.CreateAccessKeyInput{Name: "c", Role: muster.Admin})
	if _, _, err := w.RevokeAccessKey(ctx, first.ID); err != nil {
		t.Error(err)
	}
	_, _, err = w.RevokeAccessKey(ctx, second.ID)
	wantCode(t, err, muster.Conflict)
}

func TestKey_Rotated(t *testing.T) {
	const overlap = time.Hour
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		k, first := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer})
		stream := muster.PrincipalOf(w.holder(t, first)) // one that goes on, as a stream does
		_, second, _, err := w.RotateAccessKey(ctx, k.ID, overlap)
		if err != nil || second == first {
			t.Fatal(second, err)
		}
		late := muster.PrincipalOf(w.holder(t, first))
		if !late.Expires.Equal(time.Now().Add(overlap)) {
			t.Errorf("a stream that the former secret opens ends at %v", late.Expires)
		}
		if err := opens(w, second); err != nil || !w.Admitted(stream) {
			t.Errorf("within the overlap: %v", err)
		}
		time.Sleep(overlap + 2*time.Second)
		synctest.Wait()
		wantCode(t, opens(w, first), muster.Unauthenticated)
		if w.Admitted(stream) || w.Admitted(late) || opens(w, second) != nil {
			t.Error("after the overlap the former secret is in, or the present one is not")
		}
		if now := w.View().Key(k.ID); now.FormerUntil != nil || now.FormerHash != "" {
			t.Errorf("the former secret is kept: %+v", now)
		}
		// Twice within an overlap: only the one before stays good.
		_, third, _, _ := w.RotateAccessKey(ctx, k.ID, overlap)
		_, fourth, _, _ := w.RotateAccessKey(ctx, k.ID, overlap)
		for text, good := range map[string]bool{first: false, second: false, third: true, fourth: true} {
			if (opens(w, text) == nil) != good {
				t.Errorf("%v, want good %v", opens(w, text), good)
			}
		}
		_, fifth, _, _ := w.RotateAccessKey(ctx, k.ID, 0)
		for text, good := range map[string]bool{third: false, fourth: false, fifth: true} {
			if (opens(w, text) == nil) != good {
				t.Errorf("without an overlap: %v, want good %v", opens(w, text), good)
			}
		}
		for _, span := range []time.Duration{-1, muster.MaxKeyOverlap + 1} {
			_, _, _, err := w.RotateAccessKey(ctx, k.ID, span)
			wantCode(t, err, muster.Invalid)
		}
	})
}

// A revocation whose commit's answer got lost puts everybody out all the same.
func TestKey_TellsOfARevocationThatWasFoundOutLater(t *testing.T) {
	var told atomic.Int64
	armed := false
	w := open(t, setup{keysChanged: func() { told.Add(1) }, fault: func(p store.Point) error {
		if armed && (p == store.AfterCommit || p == store.Verify) {
			armed = p != store.Verify
			return errors.New("the disk is gone")
		}
		return nil
	}})
	k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer})
	before := told.Load()
	armed = true
	_, _, err := w.RevokeAccessKey(ctx, k.ID)
	wantCode(t, err, muster.Unavailable)
	eventually(t, "it is told", func() bool { return told.Load() > before })
	wantCode(t, opens(w, text), muster.Unauthenticated)
}

// Whoever has a stream open with a former secret is put out when the overlap ends,
// which is no mutation of anybody's.
func TestKey_TellsThatAnOverlapHasEnded(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		w := open(t, setup{dir: dir, keysChanged: func() { told.Add(1) }})
		k, _ := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer})
		if _, _, _, err := w.RotateAccessKey(ctx, k.ID, time.Minute); err != nil {
			t.Fatal(err)
		}
		before := told.Load()
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if told.Load() != before {
			t.Error("told before its end")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := told.Load() - before; n != 1 {
			t.Errorf("told %d times, want once", n)
		}
		w.stop()
	})
}

func TestKey_Expires(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		end := time.Now().Add(time.Hour)
		k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer, ExpiresAt: &end})
		p := muster.PrincipalOf(w.holder(t, text))
		if !p.Expires.Equal(end) {
			t.Errorf("it ends at %v, not %v", p.Expires, end)
		}
		time.Sleep(time.Hour - time.Second)
		if err := opens(w, text); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		err := opens(w, text)
		wantCode(t, err, muster.Unauthenticated)
		if !strings.Contains(err.Error(), "k-1 (ci) has expired") || w.Admitted(p) || w.KeyStatus(k) != muster.KeyExpired {
			t.Errorf("at its end: %v", err)
		}
		_, _, _, err = w.RotateAccessKey(ctx, k.ID, 0)
		wantCode(t, err, muster.Conflict)
	})
}

func TestKey_LastUsedToTheHour(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, l *ledger) {
		k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer})
		if w.LastUsed(k) != nil {
			t.Error("it was used before it was made")
		}
		commits, began := l.commits, time.Now()
		for range 3 * 60 { // three hours, once a minute
			if err := opens(w, text); err != nil {
				t.Fatal(err)
			}
			_ = opens(w, text+"x") // no use of the key
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if l.uses != 3 || l.commits != commits {
			t.Errorf("%d writes of last uses and %d commits in three hours, want 3 and none", l.uses, l.commits-commits)
		}
		if at := w.LastUsed(k); at == nil || at.Sub(began) < 2*time.Hour-time.Minute || at.Sub(began) > 2*time.Hour {
			t.Errorf("last used %v, it began at %v", at, began)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if l.uses != 3 {
			t.Errorf("%d writes while nobody used it", l.uses-3)
		}
	})
}

func TestKey_OutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	scope := &muster.KeyScope{Nodes: []string{"a*", "b"}}
	k, former := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Operator, Scope: scope, ExpiresAt: new(time.Now().Add(time.Hour))})
	_, text, _, err := w.RotateAccessKey(ctx, k.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	gone, revoked := w.made(t, muster.CreateAccessKeyInput{Name: "gone", Role: muster.Viewer})
	if _, _, err := w.RevokeAccessKey(ctx, gone.ID); err != nil {
		t.Fatal(err)
	}
	token, tokenText, _, err := w.CreateJoinToken(ctx, muster.CreateJoinTokenInput{Labels: muster.Map{"zone": "a"}, Role: muster.ServiceRole})
	if err != nil {
		t.Fatal(err)
	}
	session, _ := w.session(t, w.holder(t, text))
	before, used := *w.View().Key(k.ID), w.LastUsed(k)
	w.stop()

	w = open(t, setup{dir: dir})
	after := *w.View().Key(k.ID)
	if used == nil || after.LastUsedAt == nil || !after.LastUsedAt.Equal(*used) || !w.LastUsed(&after).Equal(*used) {
		t.Errorf("last used %v, %v before", after.LastUsedAt, used)
	}
	after.LastUsedAt = nil
	if fmt.Sprintf("%+v", deref(after)) != fmt.Sprintf("%+v", deref(before)) {
		t.Errorf("it was\n%+v, and is\n%+v", deref(before), deref(after))
	}
	for name, text := range map[string]string{"the present secret": text, "the former one": former, "a session": session} {
		if err := opens(w, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantCode(t, opens(w, revoked), muster.Unauthenticated)
	if got := w.View().Token(token.ID); got == nil || got.Labels["zone"] != "a" || got.Role != muster.ServiceRole {
		t.Errorf("the token is %+v", got)
	}
	if p, err := w.Authenticate(tokenText, ""); err != nil || p.Token != token.ID {
		t.Errorf("the token: %+v, %v", p, err)
	}
	if next, _ := w.made(t, muster.CreateAccessKeyInput{Name: "next", Role: muster.Viewer}); next.ID != "k-4" {
		t.Errorf("the next key is %s", next.ID)
	}
}

// deref is a key with its times in place of the pointers to them.
func deref(k muster.AccessKey) []any {
	until, ends := value(k.FormerUntil), value(k.ExpiresAt)
	k.FormerUntil, k.ExpiresAt = nil, nil
	return []any{k, until, ends}
}

func value(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return at.UTC().Format(time.RFC3339Nano)
}

func TestKey_EndedOnesAreForgottenWithTheAudit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, setup{dir: dir, opts: registry.Options{KeepAudit: 24 * time.Hour}})
		good, _ := w.made(t, muster.CreateAccessKeyInput{Name: "good", Role: muster.Viewer})
		revoked, _ := w.made(t, muster.CreateAccessKeyInput{Name: "revoked", Role: muster.Viewer})
		expired, text := w.made(t, muster.CreateAccessKeyInput{Name: "expired", Role: muster.Viewer, ExpiresAt: new(time.Now().Add(time.Hour))})
		if _, _, err := w.RevokeAccessKey(ctx, revoked.ID); err != nil {
			t.Fatal(err)
		}
		token, _, _, err := w.CreateJoinToken(ctx, muster.CreateJoinTokenInput{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(23 * time.Hour)
		synctest.Wait()
		if w.View().Key(revoked.ID) == nil || w.View().Key(expired.ID) == nil {
			t.Error("forgotten too early")
		}
		if len(w.JoinTokens()) != 0 || w.View().Token(token.ID) == nil {
			t.Error("a token that has expired is listed, or forgotten too early")
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		v := w.View()
		if v.Key(revoked.ID) != nil || v.Key(expired.ID) != nil || v.Token(token.ID) != nil || v.Key(good.ID) == nil {
			t.Error("what has ended is kept for longer, or what is good was forgotten")
		}
		wantCode(t, opens(w, text), muster.Unauthenticated)
		w.stop()
	})
}

func TestEnsureAdminKey(t *testing.T) {
	admin := muster.CreateAccessKeyInput{Name: "ops", Role: muster.Admin}
	for name, c := range map[string]struct {
		before func(t *testing.T, w *world) (former string)
		makes  bool
	}{
		"the first start": {func(*testing.T, *world) string { return "" }, true},
		"a key that was lost on the way to the disk": {func(_ *testing.T, w *world) string {
			text, _ := w.EnsureAdminKey(context.Background(), "admin")
			return text
		}, true},
		"a key that was used": {func(t *testing.T, w *world) string {
			text, _ := w.EnsureAdminKey(context.Background(), "admin")
			w.holder(t, text)
			return ""
		}, false},
		"another ADMIN": {func(t *testing.T, w *world) string { w.made(t, admin); return "" }, false},
		"an ADMIN that ends by itself": {func(t *testing.T, w *world) string {
			in := admin
			in.ExpiresAt = new(time.Now().Add(time.Hour))
			w.made(t, in)
			return ""
		}, true},
		"an OPERATOR": {func(t *testing.T, w *world) string {
			w.made(t, muster.CreateAccessKeyInput{Name: "admin", Role: muster.Operator})
			return ""
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, setup{})
			former := c.before(t, w)
			text, err := w.EnsureAdminKey(context.Background(), "admin")
			if err != nil || (text != "") != c.makes {
				t.Fatalf("made %v, want %v, %v", text != "", c.makes, err)
			}
			if text == "" {
				return
			}
			if p, err := w.Authenticate(text, ""); err != nil || p.Role != muster.Admin {
				t.Errorf("%+v, %v", p, err)
			}
			if former != "" {
				wantCode(t, opens(w, former), muster.Unauthenticated)
			}
		})
	}
}

func TestKeys_InPages(t *testing.T) {
	w := open(t, setup{})
	for k := range 12 {
		w.made(t, muster.CreateAccessKeyInput{Name: fmt.Sprintf("key-%d", k), Role: muster.Viewer})
	}
	var got []string
	page := muster.PageInput{First: new(5)}
	for {
		c, err := w.AccessKeys(page)
		if err != nil || c.TotalCount() != 12 {
			t.Fatal(c, err)
		}
		for _, e := range c.Edges {
			got = append(got, string(e.Node.ID))
		}
		if !c.PageInfo.HasNextPage {
			break
		}
		page.After = c.PageInfo.EndCursor
	}
	want := "k-1 k-2 k-3 k-4 k-5 k-6 k-7 k-8 k-9 k-10 k-11 k-12"
	if strings.Join(got, " ") != want {
		t.Errorf("%v", got)
	}
	_, err := w.AccessKeys(muster.PageInput{After: new("?")})
	wantCode(t, err, muster.Invalid)
}
