package auth_test

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

func TestTrust_Server(t *testing.T) {
	ca, stranger := newCA(t, day(0)), newCA(t, day(0))
	good := chain(t, ca, server(), day(0))
	foreign, err := auth.NewCA("other", day(0))
	if err != nil {
		t.Fatal(err)
	}
	rooted, pinned := auth.Trust{Roots: ca.Roots()}, auth.Trust{Pin: ca.Pin()}
	both := []auth.Trust{rooted, pinned}
	for name, c := range map[string]struct {
		trust []auth.Trust
		chain [][]byte
		now   time.Time
		want  string // a part of the refusal; empty: none
	}{
		"good":                         {both, good, day(1), ""},
		"nine minutes ago":             {both, good, day(0).Add(-9 * time.Minute), ""},
		"without the authority":        {[]auth.Trust{rooted}, good[:1], day(1), ""},
		"pinned, without it":           {[]auth.Trust{pinned}, good[:1], day(1), "not of the cluster"},
		"too early":                    {both, good, day(0).Add(-time.Hour), "compare the clocks"},
		"too late":                     {both, good, day(31), "compare the clocks"},
		"another authority":            {both, chain(t, stranger, server(), day(0)), day(1), "not of the cluster"},
		"the pinned one beside":        {both, append(chain(t, stranger, server(), day(0)), ca.Chain()...), day(1), "not of the cluster"},
		"another cluster":              {both, chain(t, foreign, auth.ServerIdentity("other"), day(0)), day(1), "not of the cluster"},
		"a node":                       {both, chain(t, ca, auth.NodeIdentity(cluster, "n-1"), day(0)), day(1), "not the server"},
		"the authority itself":         {[]auth.Trust{rooted}, good[1:], day(1), "not the server"},
		"nothing":                      {both, nil, day(1), "no certificate"},
		"garbage":                      {both, [][]byte{[]byte("x")}, day(1), "cannot be read"},
		"a very long chain":            {both, slices.Repeat(good, 20), day(1), "at most"},
		"who trusts nobody":            {[]auth.Trust{{}}, good, day(1), "not of the cluster"},
		"the leaf's own key is pinned": {[]auth.Trust{{Pin: pinOf(t, good[0])}}, good, day(1), "not of the cluster"},
	} {
		for _, trust := range c.trust {
			who, err := trust.Server(c.chain, c.now)
			if c.want == "" {
				if err != nil || who != server() {
					t.Errorf("%s: %s, %v", name, who, err)
				}
				continue
			}
			if muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
	}
}

func pinOf(t *testing.T, der []byte) auth.Pin {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return auth.PinOf(c)
}

func TestTrust_Node(t *testing.T) {
	ca := newCA(t, day(0))
	trust := auth.Trust{Roots: ca.Roots()}
	first := chain(t, ca, auth.NodeIdentity(cluster, "n-1"), day(0))
	if err := trust.Node(first, "n-1", day(1)); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another node": trust.Node(first, "n-2", day(1)),
		"no node":      trust.Node(first, "", day(1)),
		"the server":   trust.Node(chain(t, ca, server(), day(0)), "n-1", day(1)),
		"expired":      trust.Node(first, "n-1", day(31)),
		"a stranger":   trust.Node(chain(t, newCA(t, day(0)), auth.NodeIdentity(cluster, "n-1"), day(0)), "n-1", day(1)),
	} {
		if muster.CodeOf(err) != muster.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Who trusts any of the authorities believes what the newest issues, and the newest
// believes what the older ones issued.
func TestTrust_SurvivesRotation(t *testing.T) {
	ca := newCA(t, day(0))
	before := []*auth.CA{ca}
	for n := 1; n <= 3; n++ {
		ca = rotate(t, ca, day(n))
		now := chain(t, ca, server(), day(n))
		for i, old := range before {
			for kind, trust := range map[string]auth.Trust{
				"roots": {Roots: old.Roots()[:1]}, "pin": {Pin: old.Pin()},
			} {
				if _, err := trust.Server(now, day(n)); err != nil {
					t.Errorf("after %d rotations, by the %s of authority %d: %v", n, kind, i, err)
				}
			}
			if _, err := (auth.Trust{Roots: ca.Roots()}).Server(chain(t, old, server(), day(0))[:1], day(n)); err != nil {
				t.Errorf("after %d rotations, what authority %d issued: %v", n, i, err)
			}
			if _, err := (auth.Trust{Roots: old.Roots()[:1]}).Server(now[:1], day(n)); err == nil {
				t.Errorf("authority %d is believed to have issued what a later one did", i)
			}
		}
		before = append(before, ca)
	}
}

// The chain stays bounded, and what has expired is left out.
func TestCA_RotationForgets(t *testing.T) {
	first := newCA(t, day(0))
	ca := first
	for n := 1; n <= 9; n++ {
		ca = rotate(t, ca, day(n))
	}
	if roots, links := len(ca.Roots()), len(ca.Chain()); roots != 4 || links != 7 {
		t.Errorf("%d authorities in a chain of %d", roots, links)
	}
	now := chain(t, ca, server(), day(9))
	if _, err := (auth.Trust{Roots: ca.Roots()[3:]}).Server(now, day(9)); err != nil {
		t.Errorf("the oldest that is kept: %v", err)
	}
	if _, err := (auth.Trust{Roots: first.Roots()}).Server(now, day(9)); err == nil {
		t.Error("the first authority is still believed")
	}
	late := day(0).AddDate(10, 0, 3) // the first nine ended, or end within days
	if roots := len(rotate(t, first, late).Roots()); roots != 1 {
		t.Errorf("%d authorities are left when all but the new one have expired", roots)
	}
	// A certificate does not outlive its authority.
	near := first.NotAfter().Add(-24 * time.Hour)
	leaf, err := x509.ParseCertificate(chain(t, first, server(), near)[0])
	if err != nil || leaf.NotAfter.After(first.NotAfter()) {
		t.Errorf("it holds until %s, its authority until %s: %v", leaf.NotAfter, first.NotAfter(), err)
	}
}

func TestTrust_ClusterUID(t *testing.T) {
	ca := newCA(t, day(0))
	leaf, err := x509.ParseCertificate(chain(t, ca, server(), day(0))[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		trust auth.Trust
		want  string
	}{
		"authorities": {auth.Trust{Roots: ca.Roots()}, cluster}, "a pin": {auth.Trust{Pin: ca.Pin()}, ""},
		"a server's": {auth.Trust{Roots: []*x509.Certificate{leaf}}, ""}, "nobody": {auth.Trust{}, ""},
	} {
		if got := c.trust.ClusterUID(); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
