package server

import (
	"net/http"
	"net/http/pprof"

	"github.com/muster-cloud/muster"
)

// route is something that is served, and whom it is for.
type route struct {
	pattern string
	access  muster.Access
	handler http.Handler
}

// routes is the whole of what is served, a line each.
func (s *Server) routes() []route {
	return []route{
		{"/graphql", public, s.transport}, // asks for a key itself, and its fields say which
		{"/playground", public, toPlayground()},
		{"/playground/", public, playground()},
		{"POST /sign-in", public, s.signIn()}, // takes a code that was made for it
		{"POST /sign-out", muster.ForAnyKey, s.signOut()},
		{"PUT /images/{name}", muster.ForOperator, s.putImage()},
		{"GET /images/blobs/{digest}", muster.ForNode, s.getImage()},
		{"GET /exec/{instance}", muster.ForOperator, s.exec()},
		{"GET /exec/sessions/{session}", muster.ForNode, s.execAgent()},
		{"GET /healthz", public, healthz()},
		{"GET /readyz", public, readyz(s.ready)},
		{"GET /discovery/prometheus", muster.ForLookup, s.prometheus()},
		{"GET /metrics", muster.ForViewer, s.metrics()},
		{"GET /debug/pprof/", muster.ForAdmin, http.HandlerFunc(pprof.Index)},
		{"GET /debug/pprof/profile", muster.ForAdmin, http.HandlerFunc(pprof.Profile)},
		{"GET /debug/pprof/trace", muster.ForAdmin, http.HandlerFunc(pprof.Trace)},
		{"GET /{$}", public, landing()},
	}
}

// action is what the audit calls what somebody does by way of a route, in the manner of the
// API's mutations.
func (r route) action() string {
	switch r.pattern {
	case "PUT /images/{name}":
		return "importImage"
	case "GET /exec/{instance}":
		return "exec"
	}
	return r.pattern
}

func (s *Server) mux() http.Handler {
	mux, door := http.NewServeMux(), s.door
	for _, r := range s.routes() {
		mux.Handle(r.pattern, door.guard(r))
	}
	return mux
}
