package muster

import "context"

// Role is what a caller may do; a role may do all that a lesser one may.
type Role string

// The roles, from least to most.
const (
	Viewer   Role = "VIEWER"
	Agent    Role = "AGENT"
	Operator Role = "OPERATOR"
	Admin    Role = "ADMIN"
)

// Principal is who calls: the actor in changes and the scope of a requestId.
type Principal struct {
	Name string
	Role Role
}

// Local is everybody, where no key is asked for.
func Local() Principal { return Principal{Name: "local", Role: Admin} }

// Allows reports whether p's role is at least the required one.
func (p Principal) Allows(required Role) bool { return rank(p.Role) >= rank(required) }

func rank(r Role) int {
	switch r {
	case Viewer:
		return 1
	case Agent:
		return 2
	case Operator:
		return 3
	case Admin:
		return 4
	}
	return 0
}

type principalKey struct{}

// WithPrincipal returns a context that says who calls.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf returns who calls; a context that does not say is a viewer without a name.
func PrincipalOf(ctx context.Context) Principal {
	p, ok := ctx.Value(principalKey{}).(Principal)
	if !ok {
		return Principal{Role: Viewer}
	}
	return p
}
