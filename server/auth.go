package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// public is the access of routes that are there for strangers too.
const public muster.Access = ""

// doorman says who calls.
type doorman struct {
	s        *Server
	throttle *auth.Throttle
}

func newDoorman(s *Server) *doorman {
	return &doorman{s: s, throttle: auth.NewThrottle(auth.ThrottleOptions{})}
}

// authenticate says who sends a request, or opens a WebSocket: by the payload of
// connection_init, which counts, or by the header Authorization. Browsers cannot send
// headers with a WebSocket.
func (d *doorman) authenticate(_ context.Context, r *http.Request, init map[string]any) (muster.Principal, error) {
	addr := remote(r)
	if d.s.options.Keyless {
		p := muster.Local()
		p.Addr = addr.String()
		return p, nil
	}
	text, err := presented(r, init)
	if err == nil {
		var p muster.Principal
		if p, err = d.s.registry.Authenticate(text, addr.String()); err == nil {
			return p, nil
		}
	}
	return muster.Principal{}, d.failed(addr, "authenticate", err)
}

// failed counts a failed attempt, and returns what its maker is told: err, or LIMIT when
// there have been too many from there. Those are not worth an entry in the audit each.
func (d *doorman) failed(addr netip.Addr, action string, err error) error {
	wait := d.throttle.Fail(addr)
	if wait > 0 {
		e := muster.Errorf(muster.Limit, "too many failed attempts from your address: wait %s", (wait + time.Second - 1).Truncate(time.Second))
		e.Details = map[string]any{"limit": "failedAttempts"}
		return e
	}
	d.s.registry.AuditRefused(muster.Principal{Addr: addr.String(), Action: action}, err)
	return err
}

// presented is the text that a caller presents.
func presented(r *http.Request, init map[string]any) (string, error) {
	header := r.Header.Get("Authorization")
	for name, value := range init {
		if text, ok := value.(string); ok && strings.EqualFold(name, "authorization") {
			header = text
		}
	}
	scheme, text, _ := strings.Cut(header, " ")
	switch {
	case header == "":
		return "", muster.Errorf(muster.Unauthenticated, "no access key was presented: send one as the header Authorization: Bearer KEY")
	case !strings.EqualFold(scheme, "Bearer") || text == "":
		return "", muster.Errorf(muster.Unauthenticated, "the header Authorization is not of the form Bearer KEY")
	}
	return text, nil
}

// remote is the address that a request comes from; the zero address when it cannot be told.
func remote(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(host)
	return addr.Unmap()
}

// guard lets those through that a route is for. What is changed by way of it is in the
// audit under the route's action.
func (d *doorman) guard(route route) http.Handler {
	if route.access == public {
		return route.handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := d.authenticate(r.Context(), r, nil)
		if err == nil {
			p.Action, p.Target = route.action(), cmp.Or(r.PathValue("name"), r.PathValue("instance"))
			if err = p.Check(route.access); err != nil {
				d.s.registry.AuditRefused(p, err)
			}
		}
		if err != nil {
			refuseCaller(w, err)
			return
		}
		route.handler.ServeHTTP(w, r.WithContext(muster.WithPrincipal(r.Context(), p)))
	})
}

// wholeCluster refuses a key that is for a part of the cluster what concerns all of it.
func wholeCluster(p muster.Principal) error {
	if p.Scope.Unlimited() {
		return nil
	}
	return muster.Errorf(muster.Forbidden, "the key %s (%s) is for a part of the cluster, and this concerns all of it: use a key without a scope", p.Key, p.Name)
}

// refuseCaller answers with what is for callers of an error.
func refuseCaller(w http.ResponseWriter, err error) {
	known, ok := errors.AsType[*muster.Error](err)
	if !ok {
		known = muster.Errorf(muster.Internal, "the server failed: its log says why")
	}
	switch known.Code {
	case muster.Unauthenticated:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case muster.Limit:
		w.Header().Set("Retry-After", "6")
	}
	w.Header().Set("Connection", "close") // a body that may come is not worth reading
	writeError(w, statusOf(known.Code), known)
}
