package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/muster-cloud/muster"
)

// once is a requestId with the input that it stands for.
type once struct {
	principal, id, hash string
	ttl                 time.Duration
	now                 time.Time
}

// newOnce returns nil when there is no requestId.
func (r *Registry) newOnce(p muster.Principal, id string, input any) *once {
	if id == "" {
		return nil
	}
	b, _ := json.Marshal(input) // an input of the API: cannot fail
	sum := sha256.Sum256(b)
	return &once{principal: p.Identity(), id: id, hash: hex.EncodeToString(sum[:]), ttl: r.opts.RequestTTL, now: stamp(r.opts.Now())}
}

// earlier returns the id of the object that the same request made before, ""
// when this is the first, or CONFLICT when it was another input.
func (o *once) earlier(v View) (string, error) {
	if o == nil {
		return "", nil
	}
	before := v.request(o.principal, o.id)
	switch {
	case before == nil || o.now.Sub(before.At) >= o.ttl:
		return "", nil
	case before.Hash != o.hash:
		return "", muster.Errorf(muster.Conflict, "the requestId %q was used for another input, which made %s: use a new one", o.id, before.ObjectID)
	}
	return before.ObjectID, nil
}

func (o *once) record(w *Writes, objectID string) {
	if o != nil {
		w.Request(&muster.Request{Principal: o.principal, RequestID: o.id, Hash: o.hash, ObjectID: objectID, At: o.now})
	}
}
