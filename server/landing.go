package server

import (
	"fmt"
	"net/http"
)

const landingText = `muster: the registry of a small cloud

  /graphql               the API: queries and mutations by POST, subscriptions by WebSocket
  /playground/           try it in the browser
  /images/               archives of images: PUT /images/NAME
  /discovery/prometheus  what Prometheus should scrape, for http_sd_configs
  /metrics               how this server does, for Prometheus
  /healthz               whether this process lives
  /readyz                whether it can take requests
`

// landing says what is here to whoever looks at the root.
func landing() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprint(w, landingText)
	})
}
