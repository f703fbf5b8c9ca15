package registry

import (
	"context"
	"log/slog"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

// Deps is what a Registry stands on.
type Deps struct {
	Store        Store
	History      History
	Hub          *watch.Hub
	Agents       Agents
	Logger       *slog.Logger // nil: slog.Default
	Certificates Certificates // nil: there is no TLS
	Feed         Feed         // nil: entries of the discovery feed are kept, and published nowhere
	// KeysChanged is told when a key or token may open less than before; nil: nobody is.
	// It must not block.
	KeysChanged func()
}

// Store is the durable state. A Commit that fails with code UNAVAILABLE surely
// did not happen; one that wraps muster.ErrOutcomeUnknown may have; any other
// error means that the batch itself was refused.
type Store interface {
	Load(ctx context.Context) (*muster.State, error)
	Commit(ctx context.Context, b *muster.Batch) error
	SaveLastUsed(ctx context.Context, used map[muster.KeyID]time.Time) error
	ForgetAudit(ctx context.Context, before time.Time) error
	SaveLastSeen(ctx context.Context, seen map[muster.NodeUID]time.Time) error
	ForgetRequests(ctx context.Context, before time.Time) error
	Compact(ctx context.Context, keep muster.Retention) (floor muster.Position, deleted int64, err error)
}

// History reads the change log and the audit.
type History interface {
	ChangesAfter(ctx context.Context, after int64, limit int) ([]*muster.Change, error)
	ChangesOfAfter(ctx context.Context, objectID string, after int64, limit int) ([]*muster.Change, error)
	LastChanges(ctx context.Context, objectIDs []string, n int) (map[string][]*muster.Change, error)
	AuditBefore(ctx context.Context, f *muster.AuditFilter, before int64, limit int) ([]*muster.AuditEntry, error)
}

// Agents reaches the agents of nodes. Calls may fail; beats heal what got lost.
type Agents interface {
	// Nudge tells the agent that its node's desired revision has moved.
	Nudge(ctx context.Context, n Nudge) error
	// Identify asks who answers at the address of a node's agent.
	Identify(ctx context.Context, n *muster.Node) (muster.NodeUID, int64, error)
}

// Nudge names what an agent should look at.
type Nudge struct {
	UID             muster.NodeUID // of the node
	Secure          bool           // as the node's
	Addr            string
	Port            int
	Instance        muster.InstanceID
	DesiredRevision int64
	Incarnation     int64
}
