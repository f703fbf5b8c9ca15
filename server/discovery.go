package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// prometheus serves what is registered as targets for Prometheus's http_sd: GET
// /discovery/prometheus?cluster=&protocol=&service=&address=. With include=unhealthy those
// are there too that are not stable, and each has the label muster_health. It answers 503
// while the feed was never read, so that Prometheus keeps what it had.
func (s *Server) prometheus() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := s.targets(r)
		if err != nil {
			refuseDiscovery(w, err)
			return
		}
		sum := sha256.Sum256(body)
		tag := `"` + hex.EncodeToString(sum[:16]) + `"`
		w.Header().Set("ETag", tag)
		w.Header().Set("Content-Type", "application/json")
		if isTagged(r.Header, tag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(body)
	})
}

// isTagged tells whether who asks has what a tag is of: a proxy may have weakened it, and asks for
// several at a time.
func isTagged(header http.Header, tag string) bool {
	for _, line := range header.Values("If-None-Match") {
		for given := range strings.SplitSeq(line, ",") {
			if given = strings.TrimSpace(given); given == "*" || strings.TrimPrefix(given, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// discoveryParameters are those of http_sd. With another one, a typo, everything would be found.
func discoveryParameters() []string {
	return []string{"cluster", "protocol", "service", "address", "include"}
}

func (s *Server) targets(r *http.Request) ([]byte, error) {
	q := r.URL.Query()
	for name := range q {
		if !slices.Contains(discoveryParameters(), name) {
			return nil, muster.InvalidField(name, "there is no such parameter; give any of %s", strings.Join(discoveryParameters(), ", "))
		}
	}
	include := q.Get("include")
	if include != "" && include != "unhealthy" {
		return nil, muster.InvalidField("include", "%q is nothing that can be included; give unhealthy, or leave it out", include)
	}
	f := muster.RegistrationFilter{Cluster: q.Get("cluster"), Protocol: q.Get("protocol"), Service: q.Get("service"), Address: q.Get("address")}
	found, err := s.registry.Registrations(f, false)
	if err != nil {
		return nil, err
	}
	if !found.Complete && found.AsOf.IsZero() {
		return nil, muster.Errorf(muster.Unavailable, "the discovery feed was not read yet: keep what you have")
	}
	all := include != ""
	targets := make([]registration.Target, 0, len(found.Entries))
	for _, e := range found.Entries {
		t := registration.Target{Registration: &e.Registration}
		if all {
			t.Health = string(muster.HealthOK)
			if e.Status == muster.EntryStale {
				t.Health = string(muster.EntryStale)
			}
		}
		targets = append(targets, t)
	}
	if all {
		withheld, err := s.registry.Withheld(f)
		if err != nil {
			return nil, err
		}
		for _, e := range withheld {
			targets = append(targets, registration.Target{Registration: e.Registration, Health: string(e.Health)})
		}
	}
	return registration.Prometheus(targets)
}

func refuseDiscovery(w http.ResponseWriter, err error) {
	known, ok := errors.AsType[*muster.Error](err)
	status := http.StatusInternalServerError
	switch {
	case !ok:
		known = muster.Errorf(muster.Internal, "the server failed: its log says why")
	case known.Code == muster.Invalid:
		status = http.StatusBadRequest
	case known.Code == muster.Unavailable:
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "5")
	}
	writeError(w, status, known)
}
