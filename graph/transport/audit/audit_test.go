package audit_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/registry/watch"
)

func TestAudit_GraphQLOverHTTP(t *testing.T) {
	dir, url := installed(t), serve(t)
	if out := run(t, dir, "node", "audit.mjs", url); out != "61 of 61\n" {
		t.Error(out)
	}
}

func TestAudit_GraphQLWS(t *testing.T) {
	dir, url := installed(t), serve(t)
	want := `query [{"serverInfo":{"version":"1.2.3"}}]
error INVALID
watched 2,3,4,5,6,7,8,9,10
pong
`
	if out := run(t, dir, "node", "watch.mjs", "ws"+strings.TrimPrefix(url, "http"), change(1).Cursor().String()); out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

// installed copies the scripts to a folder of the test and installs what their
// lock file names.
func installed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(".")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	return dir
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// serve starts a server with ten changes and returns its URL.
func serve(t *testing.T) string {
	t.Helper()
	hub := watch.New(nil, watch.Options{}) // the ring has it all
	hub.Reset(epoch, muster.Position{}, muster.Position{})
	for revision := range int64(10) {
		hub.Publish([]*muster.Change{change(revision + 1)})
	}
	handler := transport.New(generated.NewExecutableSchema(generated.Config{
		Resolvers: resolvers{hub: hub},
		Directives: generated.DirectiveRoot{Auth: func(ctx context.Context, _ any, next graphql.Resolver, _ muster.Role) (any, error) {
			return next(ctx)
		}},
	}), hub, transport.Options{})
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.Close()
		if err := handler.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return server.URL
}

const epoch = "00000000000000aa"

func change(revision int64) *muster.Change {
	return &muster.Change{
		Revision: revision, Epoch: epoch, Batch: fmt.Sprintf("%016x", revision), At: time.Unix(revision, 0),
		Kind: muster.KindNode, ObjectID: "n1", Node: &muster.Node{ID: "n1"},
	}
}

// resolvers answer what the scripts ask.
type resolvers struct{ hub *watch.Hub }

func (resolvers) Instance() generated.InstanceResolver           { return nil }
func (resolvers) Node() generated.NodeResolver                   { return nil }
func (resolvers) Mutation() generated.MutationResolver           { return nil }
func (resolvers) Query() generated.QueryResolver                 { return queries{} }
func (r resolvers) Subscription() generated.SubscriptionResolver { return subscriptions{hub: r.hub} }

type queries struct{ generated.QueryResolver }

func (queries) ServerInfo(context.Context) (*muster.ServerInfo, error) {
	return &muster.ServerInfo{Version: "1.2.3"}, nil
}

type subscriptions struct {
	generated.SubscriptionResolver
	hub *watch.Hub
}

func (s subscriptions) NodeChanges(ctx context.Context, since *muster.Cursor, _ *bool, _ *muster.NodeFilter) (<-chan *muster.Event, error) {
	all := func(*muster.Change) (deliver, left bool) { return true, false }
	return s.hub.Serve(ctx, watch.Spec{Match: all}, watch.Request{Since: since})
}
