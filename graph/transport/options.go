package transport

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
)

// Options are the settings of a Handler; the zero value works.
type Options struct {
	Logger *slog.Logger // nil: nothing is logged

	// Authenticate says who calls: by an HTTP request (init is nil), or by the
	// payload of connection_init and the request that was upgraded. An error
	// refuses the caller. Nil: everybody is muster.Local.
	Authenticate func(ctx context.Context, r *http.Request, init map[string]any) (muster.Principal, error)
	// Admitted reports whether a caller that was authenticated earlier still would be;
	// Expel asks it. Nil: always.
	Admitted func(muster.Principal) bool
	// Origins are further web origins, such as "https://console.example", that may
	// call beside the server's own.
	Origins []string

	AroundOperations []graphql.OperationMiddleware
	AroundResponses  []graphql.ResponseMiddleware // once a response and once an event: data loaders

	Limits Limits

	OperationTime time.Duration // how long an operation, or one event of a subscription, may take; 0: 30 s
	BodyTime      time.Duration // how long the part of a body above Limits.Body may take to come; 0: 10 s
	InitTimeout   time.Duration // from the upgrade to connection_init; 0: 3 s
	Ping          time.Duration // between two pings; two without an answer are the end; 0: 20 s
	WriteStall    time.Duration // a write without progress for so long closes the connection; 0: 5 s
	ShutdownOver  time.Duration // over how long Shutdown spreads its farewells; 0: 2 s
	ShutdownWait  time.Duration // how long Shutdown waits at most; 0: 5 s
	PayloadCache  int           // bytes of encoded events that are kept; 0: 32 MiB
	DocumentCache int           // bytes of query texts whose documents are kept; 0: 1 MiB
}

// Limits are what a client may ask for; the zero value works.
type Limits struct {
	Body        int64 // bytes of a request or message; 0: 64 KiB
	AgentBody   int64 // the same for registerNode and reportInstances; 0: 1 MiB
	AgentBodies int   // bodies above Body in memory at a time; 0: 16

	Tokens     int // of a document; 0: 1000
	Depth      int // of nested selections; 0: 20
	Fields     int // of an operation, its fragments spread; 0: 500
	Aliases    int // of an operation, its fragments spread; 0: 30
	RootFields int // of an operation, its fragments spread; 0: 20
	Directives int // of an operation, its fragments spread; 0: 20
	Complexity int // fields an answer may have, each list counted in full; 0: 100000

	Operations              int // live on one connection; 0: 100
	Connections             int // in all; 0: 5000
	ConnectionsPerPrincipal int // 0: 2000
	Streams                 int // live subscriptions in all; 0: 20000
}

const (
	maxCachedText = 8 << 10 // query texts above it are parsed each time
	maxIDBytes    = 128     // of an operation's id on a connection
	maxErrors     = 10      // that a refused document is answered with
)

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Authenticate == nil {
		o.Authenticate = func(context.Context, *http.Request, map[string]any) (muster.Principal, error) {
			return muster.Local(), nil
		}
	}
	if o.Admitted == nil {
		o.Admitted = func(muster.Principal) bool { return true }
	}
	orElse(&o.OperationTime, 30*time.Second)
	orElse(&o.BodyTime, 10*time.Second)
	orElse(&o.InitTimeout, 3*time.Second)
	orElse(&o.Ping, 20*time.Second)
	orElse(&o.WriteStall, 5*time.Second)
	orElse(&o.ShutdownOver, 2*time.Second)
	orElse(&o.ShutdownWait, 5*time.Second)
	orElse(&o.PayloadCache, 32<<20)
	orElse(&o.DocumentCache, 1<<20)
	o.Limits = o.Limits.WithDefaults()
	return o
}

// WithDefaults returns l with its zero fields filled in.
func (l Limits) WithDefaults() Limits {
	orElse(&l.Body, 64<<10)
	orElse(&l.AgentBody, 1<<20)
	orElse(&l.AgentBodies, 16)
	orElse(&l.Tokens, 1000)
	orElse(&l.Depth, 20)
	orElse(&l.Fields, 500)
	orElse(&l.Aliases, 30)
	orElse(&l.RootFields, 20)
	orElse(&l.Directives, 20)
	orElse(&l.Complexity, 100_000)
	orElse(&l.Operations, 100)
	orElse(&l.Connections, 5000)
	orElse(&l.ConnectionsPerPrincipal, 2000)
	orElse(&l.Streams, 20_000)
	return l
}

func orElse[T comparable](setting *T, value T) {
	var zero T
	if *setting == zero {
		*setting = value
	}
}
