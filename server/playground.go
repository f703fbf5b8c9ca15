package server

import (
	"net/http"

	"github.com/muster-cloud/muster/server/console"
)

// playground serves GraphiQL below /playground/.
func playground() http.Handler {
	return http.StripPrefix("/playground", console.Handler())
}

// toPlayground sends those who left the slash out on.
func toPlayground() http.Handler {
	return http.RedirectHandler("/playground/", http.StatusMovedPermanently)
}
