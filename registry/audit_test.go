package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/auth"
	"github.com/muster-cloud/muster/registry/store"
)

// doing is a caller who is doing something that the audit is to know of.
func doing(action, target string) context.Context {
	return muster.WithPrincipal(context.Background(), muster.Principal{
		Name: "alice", Role: muster.Admin, Addr: "192.0.2.1", Action: action, Target: target,
	})
}

// audit is the whole of it, oldest first, in short.
func (w *world) audit(t *testing.T, f *muster.AuditFilter) []string {
	t.Helper()
	var lines []string
	page := muster.PageInput{First: new(100)}
	for {
		c, err := w.Audit(context.Background(), f, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Edges {
			line := fmt.Sprintf("%s %s(%s) %s", e.Node.Name, e.Node.Action, e.Node.Target, e.Node.Outcome)
			if e.Node.Count > 1 {
				line += fmt.Sprintf(" x%d", e.Node.Count)
			}
			lines = append(lines, line)
		}
		if !c.PageInfo.HasNextPage {
			slices.Reverse(lines)
			return lines
		}
		page.After = c.PageInfo.EndCursor
	}
}

func TestAudit_WhatWasDone(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 4, 4096) // what agents say is not for the audit
	for range 2 {
		if _, _, err := w.CordonNode(doing("cordonNode", "n1"), "n1", ""); err != nil { // the second time changes nothing
			t.Fatal(err)
		}
	}
	if _, _, err := w.UncordonNode(doing("uncordonNode", string(n.UID)), "n1"); err != nil {
		t.Fatal(err)
	}
	i, _, err := w.LaunchInstance(doing("launchInstance", ""), launch(muster.Nano))
	if err != nil {
		t.Fatal(err)
	}
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{i.ID: muster.Running})
	k, _, _, err := w.CreateAccessKey(doing("createAccessKey", "ci"), muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.RevokeAccessKey(doing("revokeAccessKey", ""), k.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.CreateSignIn(doing("createSignIn", ""), time.Minute); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.LabelNode(doing("labelNode", "n1"), muster.LabelInput{ID: "n1", Set: tooManyLabels()})
	wantCode(t, err, muster.Invalid)
	want := []string{
		"alice cordonNode(n1) DONE", "alice cordonNode(n1) DONE", "alice uncordonNode(n1) DONE", "alice launchInstance(i-1) DONE",
		"alice createAccessKey(k-1) DONE", "alice revokeAccessKey(k-1) DONE", "alice createSignIn() DONE",
	}
	if got := w.audit(t, nil); !slices.Equal(got, want) {
		t.Errorf("the audit says\n%q, want\n%q", got, want)
	}
}

func tooManyLabels() muster.Map {
	m := muster.Map{}
	for k := range muster.MaxMapEntries + 1 {
		m[fmt.Sprint(k)] = "x"
	}
	return m
}

// What was done and its entry are one commit: neither is there without the other.
func TestAudit_ComesWithTheCommitOrNotAtAll(t *testing.T) {
	for at, done := range map[store.Point]bool{
		store.BeforeWrite: false, store.BeforeCommit: false, store.DuringCommit: false, store.AfterCommit: true,
	} {
		t.Run(string(at), func(t *testing.T) {
			dir, armed := t.TempDir(), false
			w := open(t, setup{dir: dir, fault: func(p store.Point) error {
				if armed && p == at {
					armed = false
					return errors.New("the disk is gone")
				}
				return nil
			}})
			w.join(t, "n1", 4, 4096)
			armed = true
			_, _, _ = w.CordonNode(doing("cordonNode", "n1"), "n1", "")
			eventually(t, "the state is loaded", func() bool { return w.Ready() == nil })
			w.stop()
			w = open(t, setup{dir: dir})
			if got := len(w.audit(t, nil)) == 1; got != done || w.Node("n1").Schedulable == done {
				t.Errorf("in the audit: %v, cordoned: %v, want %v", got, !w.Node("n1").Schedulable, done)
			}
		})
	}
}

func TestAudit_Refusals(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, l *ledger) {
		p := muster.PrincipalOf(doing("stopInstance", "i-1"))
		no := muster.Errorf(muster.Forbidden, "no")
		before := l.commits
		for range 1000 {
			w.AuditRefused(p, no)
		}
		p.Target = "i-2"
		w.AuditRefused(p, no)
		p.Addr = "192.0.2.2"
		w.AuditRefused(p, no)
		w.AuditRefused(p, errors.New("dial /run/secret: refused"))
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if n := l.commits - before; n != 1 {
			t.Errorf("%d commits for a flood, want 1", n)
		}
		want := []string{
			"alice stopInstance(i-1) FORBIDDEN x1000", "alice stopInstance(i-2) FORBIDDEN", "alice stopInstance(i-2) FORBIDDEN", "alice stopInstance(i-2) INTERNAL",
		}
		if got := w.audit(t, nil); !slices.Equal(got, want) {
			t.Errorf("the audit says\n%q, want\n%q", got, want)
		}
		c, err := w.Audit(ctx, nil, muster.PageInput{First: new(1)})
		if err != nil || strings.Contains(c.Edges[0].Node.Reason, "secret") {
			t.Errorf("the reason of what is for nobody: %q, %v", c.Edges[0].Node.Reason, err)
		}
		before = l.commits
		time.Sleep(time.Hour)
		synctest.Wait()
		if l.commits != before {
			t.Errorf("%d commits in a quiet hour", l.commits-before)
		}
	})
}

func TestAudit_AFloodOfManyKindsIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		const kinds, all = 1024, 50_000
		for k := range all {
			w.AuditRefused(muster.Principal{Addr: fmt.Sprintf("192.0.2.%d", k), Action: "authenticate"}, muster.Errorf(muster.Unauthenticated, "no"))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		got := w.audit(t, nil)
		if len(got) != kinds+1 {
			t.Fatalf("%d entries", len(got))
		}
		if last := got[len(got)-1]; last != fmt.Sprintf(" () UNAUTHENTICATED x%d", all-kinds) {
			t.Errorf("the rest is %q", last)
		}
	})
}

func TestAudit_RefusalsAreThereAfterAStop(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	w.AuditRefused(muster.PrincipalOf(doing("stopInstance", "i-1")), muster.Errorf(muster.Forbidden, "no"))
	w.stop()
	if got := open(t, setup{dir: dir}).audit(t, nil); len(got) != 1 {
		t.Errorf("the audit says %q", got)
	}
}

// People paste keys where ids belong; what is kept for years must not have them.
func TestAudit_HoldsNoKeyThatWasPasted(t *testing.T) {
	w := open(t, setup{})
	_, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Viewer})
	token := auth.JoinToken{ID: "t-1", Secret: auth.NewSecret(), Pin: auth.Pin{1}}.Text()
	for _, secret := range []string{text, token, text[:40]} {
		p := muster.PrincipalOf(doing("revokeAccessKey", secret))
		w.AuditRefused(p, muster.Errorf(muster.NotFound, "no key %q", secret))
	}
	c, err := w.Audit(ctx, nil, muster.PageInput{})
	if err != nil || len(c.Edges) == 0 {
		t.Fatal(c, err)
	}
	for _, e := range c.Edges {
		if all := fmt.Sprint(*e.Node); strings.Contains(all, text[11:30]) || strings.Contains(all, token[17:40]) || !strings.Contains(all, "[secret]") {
			t.Errorf("the audit has %s", all)
		}
	}
}

func TestAudit_FiltersAndPages(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		w.join(t, "n1", 4, 4096)
		began := time.Now()
		k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Operator})
		p := muster.PrincipalOf(w.holder(t, text))
		p.Action, p.Target = "cordonNode", "n1"
		for range 5 {
			if _, _, err := w.CordonNode(muster.WithPrincipal(ctx, p), "n1", ""); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		w.AuditRefused(muster.PrincipalOf(doing("stopInstance", "i-1")), muster.Errorf(muster.Forbidden, "no"))
		yes, no := true, false
		for name, c := range map[string]struct {
			f    *muster.AuditFilter
			want int
		}{
			"nothing":            {nil, 6},
			"an empty one":       {&muster.AuditFilter{}, 6},
			"a key":              {&muster.AuditFilter{Key: new(string(k.ID))}, 5},
			"another key":        {&muster.AuditFilter{Key: new("k-9")}, 0},
			"no key":             {&muster.AuditFilter{Key: new("")}, 1},
			"an action":          {&muster.AuditFilter{Action: new("cordonNode")}, 5},
			"a target":           {&muster.AuditFilter{Target: new("i-1")}, 1},
			"what was refused":   {&muster.AuditFilter{Refused: &yes}, 1},
			"what was done":      {&muster.AuditFilter{Refused: &no}, 5},
			"from some moment":   {&muster.AuditFilter{Since: new(began.Add(time.Minute))}, 1},
			"from its beginning": {&muster.AuditFilter{Since: new(began.In(time.FixedZone("", 3600)))}, 6},
			"an injection":       {&muster.AuditFilter{Action: new(`" OR 1=1 --`)}, 0},
		} {
			if got := w.audit(t, c.f); len(got) != c.want {
				t.Errorf("%s selects %q, want %d", name, got, c.want)
			}
		}
		var ids []int64
		page := muster.PageInput{First: new(2)}
		for {
			c, err := w.Audit(ctx, nil, page)
			if err != nil || c.PageInfo.HasPreviousPage != (page.After != nil) {
				t.Fatal(c.PageInfo, err)
			}
			for _, e := range c.Edges {
				ids = append(ids, e.Node.ID)
			}
			if !c.PageInfo.HasNextPage {
				break
			}
			page.After = c.PageInfo.EndCursor
		}
		if len(ids) != 6 || !slices.IsSortedFunc(ids, func(a, b int64) int { return int(b - a) }) {
			t.Errorf("pages of %v", ids)
		}
		for _, after := range []string{"?", "aGVsbG8", "LTE"} { // none, "hello", "-1"
			_, err := w.Audit(ctx, nil, muster.PageInput{After: &after})
			wantCode(t, err, muster.Invalid)
		}
	})
}

func TestAudit_IsKeptByAge(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, setup{dir: dir, opts: registry.Options{KeepAudit: 24 * time.Hour}})
		w.AuditRefused(muster.Principal{Action: "old"}, muster.Errorf(muster.Forbidden, "no"))
		time.Sleep(12 * time.Hour)
		w.AuditRefused(muster.Principal{Action: "new"}, muster.Errorf(muster.Forbidden, "no"))
		time.Sleep(13 * time.Hour)
		synctest.Wait()
		if got := w.audit(t, nil); len(got) != 1 || !strings.Contains(got[0], "new") {
			t.Errorf("the audit says %q", got)
		}
		w.stop()
	})
}

// Nothing that a key did comes after its revocation, however close they are.
func TestRevocation_IsTheLastOfAKey(t *testing.T) {
	w := open(t, setup{})
	w.join(t, "n1", 64, 65536)
	k, text := w.made(t, muster.CreateAccessKeyInput{Name: "ci", Role: muster.Operator})
	holder := w.holder(t, text)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			for range 50 {
				if _, _, err := w.LabelNode(holder, muster.LabelInput{ID: "n1", Set: muster.Map{"at": time.Now().String()}}); err != nil {
					if muster.CodeOf(err) != muster.Unauthenticated {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	_, revoked, err := w.RevokeAccessKey(ctx, k.ID)
	if err != nil {
		t.Fatal(err)
	}
	wait.Wait()
	changes, err := w.store.ChangesAfter(ctx, revoked, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		if c.ActorKey == k.ID {
			t.Errorf("revision %d is the key's, which was revoked at or before %d", c.Revision, revoked)
		}
	}
}
