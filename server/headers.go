package server

import "net/http"

// careful sets what no answer does without, the refusals and what strangers get included.
// The playground says more of itself.
//
// Answers are not kept, not taken for another type than they say, not shown in a frame,
// and not loaded by pages of other origins; none of them is a page that runs anything.
func careful(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
