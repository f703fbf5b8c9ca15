package transport

import (
	"net/http"
	"slices"
)

// ownPage lets programs through, which name no origin, and pages of the server's own or of
// an allowed one. It asks the same of every method: a page that may not read a query's
// answer could still make the server work, and see how long it takes.
func (h *Handler) ownPage(r *http.Request) error {
	judged := *r
	judged.Method = http.MethodPost // a safe one would be let through
	return h.crossSite.Check(&judged)
}

// share lets pages of allowed origins read the answer. True: the request was their
// browser's question whether they may ask, and is answered.
func (h *Handler) share(w http.ResponseWriter, r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if !slices.Contains(h.options.Origins, origin) {
		return false
	}
	header := w.Header()
	header.Set("Access-Control-Allow-Origin", origin)
	header.Add("Vary", "Origin")
	if r.Method != http.MethodOptions {
		return false
	}
	header.Set("Access-Control-Allow-Methods", "GET, POST")
	header.Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
	header.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
