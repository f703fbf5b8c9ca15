package server

import (
	"net/http"

	"github.com/muster-cloud/muster"
)

// ownPages answers 403 to what pages of other origins than the server's own, and those of
// the settings, want changed: a browser sends it without asking its user. Programs name no
// origin. Of what the API does for pages, the transport is the judge.
func ownPages(origins []string, next http.Handler) http.Handler {
	crossSite := http.NewCrossOriginProtection()
	for _, origin := range origins {
		_ = crossSite.AddTrustedOrigin(origin) // it was checked
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := crossSite.Check(r); err != nil {
			writeError(w, http.StatusForbidden, muster.Errorf(muster.Forbidden, "this page's origin may not call the server; allow it in the server's settings: %w", err))
			return
		}
		next.ServeHTTP(w, r)
	})
}
