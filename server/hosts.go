package server

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/muster-cloud/muster"
)

// hosts are the names in a Host header that are served.
type hosts map[string]bool

// newHosts allows the names of loopback, those configured, and the address that
// the server listens on when it is a certain one.
func newHosts(listen string, configured []string) hosts {
	h := hosts{"localhost": true, "127.0.0.1": true, "::1": true}
	for _, name := range configured {
		h[hostOf(name)] = true
	}
	host, _, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && host != "" && (ip == nil || !ip.IsUnspecified()) {
		h[hostOf(host)] = true
	}
	return h
}

// only answers 421 to every request for a host that is not allowed, upgrades too.
func (h hosts) only(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h[hostOf(r.Host)] {
			next.ServeHTTP(w, r)
			return
		}
		writeError(w, http.StatusMisdirectedRequest, muster.Errorf(muster.Forbidden,
			"host %q is not served here; ask for one of %s, or start the server with --allowed-hosts", printable(r.Host), h))
	})
}

// String lists the hosts as a URL writes them.
func (h hosts) String() string {
	var names []string
	for name := range h {
		if strings.Contains(name, ":") {
			name = "[" + name + "]"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// hostOf returns the host of a Host header without port, brackets, final dot or
// capitals.
func hostOf(header string) string {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// printable cuts what a stranger sent to something that fits into a message.
func printable(s string) string {
	const most = 100
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
