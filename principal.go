package muster

import (
	"context"
	"time"
)

// Role is what the holder of a key is: it decides what the key may do.
type Role string

// The roles. VIEWER, OPERATOR and ADMIN build upon each other; NODE and REGISTRAR
// stand beside them.
const (
	Viewer      Role = "VIEWER"
	Operator    Role = "OPERATOR"
	Admin       Role = "ADMIN"
	NodeAgent   Role = "NODE"
	Registrar   Role = "REGISTRAR"
	JoiningNode Role = "JOINING" // who presents a join token: no key has it
)

// Valid reports whether a key can have the role.
func (r Role) Valid() bool {
	switch r {
	case Viewer, Operator, Admin, NodeAgent, Registrar:
		return true
	}
	return false
}

// Access is who may use a field of the schema or a route of HTTP.
type Access string

// What fields and routes ask for.
const (
	ForAnyKey    Access = "ANY_KEY"
	ForViewer    Access = "VIEWER"
	ForOperator  Access = "OPERATOR"
	ForAdmin     Access = "ADMIN"
	ForNode      Access = "NODE"
	ForRegistrar Access = "REGISTRAR"
	ForLookup    Access = "REGISTRAR_OR_VIEWER"
	ForJoining   Access = "JOIN_TOKEN"
)

// Admits reports whether a role is enough.
func (a Access) Admits(r Role) bool {
	switch a {
	case ForAnyKey:
		return r.Valid()
	case ForViewer:
		return r == Viewer || r == Operator || r == Admin
	case ForOperator:
		return r == Operator || r == Admin
	case ForAdmin:
		return r == Admin
	case ForNode:
		return r == NodeAgent || r == Admin
	case ForRegistrar:
		return r == Registrar || r == Operator || r == Admin
	case ForLookup:
		return r == Registrar || ForViewer.Admits(r)
	case ForJoining:
		return r == JoiningNode
	}
	return false
}

// Principal is who calls: the actor in changes, the scope of a requestId and of
// what is seen.
type Principal struct {
	Key     KeyID  // empty where no key is asked for
	Name    string // of the key, for people
	Role    Role
	Scope   KeyScope
	NodeUID NodeUID   // NODE: the node that the key was issued to by joining; empty: any that the scope has
	Secret  int64     // which of the key's secrets was presented, counted from 1
	Expires time.Time // zero: never
	Addr    string    // the caller's network address without the port; empty: unknown
	// Token is what a JOINING caller presented; empty on others.
	Token TokenID
	// Action is the field or route that is being used, and Target what it is about as
	// the caller said it; for the audit.
	Action, Target string
}

// Local is everybody, where no key is asked for.
func Local() Principal { return Principal{Name: "local", Role: Admin} }

// Actor is what changes and the audit say of who acted.
type Actor struct {
	Name string
	Key  KeyID
	Addr string
}

// Actor is what changes say of p.
func (p Principal) Actor() Actor { return Actor{Name: p.Name, Key: p.Key, Addr: p.Addr} }

// Identity tells principals apart: the key, or the name where there is none.
func (p Principal) Identity() string {
	if p.Key != "" {
		return string(p.Key)
	}
	return p.Name
}

// Allows reports whether p may use what asks for the access.
func (p Principal) Allows(a Access) bool { return a.Admits(p.Role) }

// Check refuses what is not for p: UNAUTHENTICATED when nobody is known to call, else
// FORBIDDEN.
func (p Principal) Check(a Access) error {
	switch {
	case p.Allows(a):
		return nil
	case p.Role == "":
		return Errorf(Unauthenticated, "no access key was presented: send one as the header Authorization: Bearer KEY")
	case p.Role == JoiningNode:
		return Errorf(Forbidden, "a join token is for joining alone: use an access key")
	case a == ForJoining:
		return Errorf(Forbidden, "%s is an access key, and machines join with a token: make one with muster token create", p.Name)
	}
	return Errorf(Forbidden, "the key %s has the role %s; this needs %s", p.Name, p.Role, a)
}

type principalKey struct{}

// WithPrincipal returns a context that says who calls.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalOf returns who calls; a context that does not say is nobody, who may do nothing.
func PrincipalOf(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
