package browsertest_test

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/extension"
	"github.com/99designs/gqlgen/graphql/handler/transport"
	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
	"github.com/muster-cloud/muster/server/console"
)

// stub answers what the test asks, on the real schema; anything else would
// panic on the nil resolver that it embeds.
type stub struct{ generated.ResolverRoot }

func (stub) Query() generated.QueryResolver { return queries{} }

type queries struct{ generated.QueryResolver }

func (queries) ClusterHealth(context.Context) (*muster.ClusterHealth, error) {
	return &muster.ClusterHealth{Status: muster.ClusterDegraded}, nil
}

func (queries) Nodes(context.Context, *muster.NodeFilter, *int, *string) (*muster.NodeConnection, error) {
	return &muster.NodeConnection{Edges: []*muster.NodeEdge{}, PageInfo: &muster.PageInfo{}, Count: func() int { return 0 }}, nil
}

func serve(next <-chan string) http.Handler {
	config := generated.Config{Resolvers: stub{}}
	config.Directives.Auth = func(ctx context.Context, _ any, next graphql.Resolver, _ muster.Role) (any, error) { return next(ctx) }
	api := handler.New(generated.NewExecutableSchema(config))
	api.AddTransport(transport.POST{})
	api.Use(extension.Introspection{})
	mux := http.NewServeMux()
	mux.Handle("/playground/", http.StripPrefix("/playground", console.Handler()))
	mux.HandleFunc("/graphql", func(w http.ResponseWriter, r *http.Request) {
		if websocket.IsWebSocketUpgrade(r) {
			socket(w, r, next)
			return
		}
		api.ServeHTTP(w, r)
	})
	return mux
}

func socket(w http.ResponseWriter, r *http.Request, next <-chan string) {
	up := websocket.Upgrader{Subprotocols: []string{"graphql-transport-ws"}}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	for {
		var m struct{ ID, Type string }
		if err := ws.ReadJSON(&m); err != nil {
			return
		}
		switch m.Type {
		case "connection_init":
			_ = ws.WriteJSON(map[string]string{"type": "connection_ack"})
		case "subscribe":
			for s := range next {
				_ = ws.WriteJSON(map[string]any{"id": m.ID, "type": "next", "payload": json.RawMessage(s)})
			}
		}
	}
}
