package graph

import (
	"context"
	"errors"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vikstrous/dataloadgen"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
)

// gather is how long a loader waits for more of the same before it reads.
const gather = time.Millisecond

// defaultChanges is how many changes an object's `changes` gives.
const defaultChanges = 10

// changesOf asks for an object's newest changes.
type changesOf struct {
	objectID string
	first    int
}

type loaders struct {
	changes *dataloadgen.Loader[changesOf, []*muster.Change]
}

type loadersKey struct{}

// Loaders gives each response, each event of a subscription too, loaders of
// its own: what its lists ask for one by one is read at once.
func Loaders(r *registry.Registry) graphql.ResponseMiddleware {
	return func(ctx context.Context, next graphql.ResponseHandler) *graphql.Response {
		l := &loaders{changes: dataloadgen.NewLoader(func(ctx context.Context, keys []changesOf) ([][]*muster.Change, []error) {
			return readChanges(ctx, r, keys)
		}, dataloadgen.WithWait(gather))}
		return next(context.WithValue(ctx, loadersKey{}, l))
	}
}

// readChanges reads all that is asked for at once: one read for each length.
func readChanges(ctx context.Context, r *registry.Registry, keys []changesOf) ([][]*muster.Change, []error) {
	ids := map[int][]string{}
	for _, k := range keys {
		ids[k.first] = append(ids[k.first], k.objectID)
	}
	found := map[changesOf][]*muster.Change{}
	for first, group := range ids {
		changes, err := r.LastChanges(ctx, group, first)
		if err != nil {
			return nil, []error{err}
		}
		for id, list := range changes {
			found[changesOf{id, first}] = list
		}
	}
	out := make([][]*muster.Change, len(keys))
	for i, k := range keys {
		if out[i] = found[k]; out[i] == nil {
			out[i] = []*muster.Change{}
		}
	}
	return out, nil
}

func lastChanges(ctx context.Context, objectID string, first *int) ([]*muster.Change, error) {
	n := defaultChanges
	if first != nil {
		var err error
		if n, err = (muster.PageInput{First: first}).Limit(); err != nil {
			return nil, err
		}
	}
	l, ok := ctx.Value(loadersKey{}).(*loaders)
	if !ok {
		return nil, errors.New("the response middleware Loaders is missing")
	}
	return l.changes.Load(ctx, changesOf{objectID, n})
}
