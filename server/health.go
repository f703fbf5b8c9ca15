package server

import (
	"fmt"
	"net/http"
)

// healthz says that the process lives; nothing else is asked.
func healthz() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		writeProbe(w, http.StatusOK, "ok")
	})
}

// readyz says whether mutations would be taken, and if not, why. ready returns
// nil when they would.
func readyz(ready func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := ready(); err != nil {
			writeProbe(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		writeProbe(w, http.StatusOK, "ready")
	})
}

func writeProbe(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text)
}
