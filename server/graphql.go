package server

import (
	"net/http"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph"
	"github.com/muster-cloud/muster/graph/transport"
)

// graphql makes the API: the resolvers on the registry, behind our transports,
// which also keep other web pages out.
func (s *Server) graphql() *transport.Handler {
	return transport.New(graph.NewSchema(s.registry), s.hub, transport.Options{
		Logger:          s.log,
		Authenticate:    s.door.authenticate,
		Admitted:        s.registry.Admitted,
		Origins:         s.options.AllowedOrigins,
		AroundResponses: []graphql.ResponseMiddleware{graph.Loaders(s.registry)},
		Limits:          s.options.Limits,
		OperationTime:   s.options.OperationTime,
		Ping:            s.options.PingInterval,
	})
}

// checkOrigins refuses what is not an origin, as the transport would.
func checkOrigins(origins []string) error {
	protection := http.NewCrossOriginProtection()
	for _, origin := range origins {
		if err := protection.AddTrustedOrigin(origin); err != nil {
			return muster.InvalidField("allowed-origins", "%q is not an origin; write scheme and host such as https://ops.example", printable(origin))
		}
	}
	return nil
}
