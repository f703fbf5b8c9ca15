package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/99designs/gqlgen/graphql"
)

// body is what a client sent. Those above the usual limit hold one of few tokens
// until release.
type body struct {
	bytes []byte
	token chan struct{} // nil: none is held
}

func (b *body) release() {
	if b.token != nil {
		<-b.token
		b.token = nil
	}
}

// Why a body could not be read, beside what the connection says.
var (
	errTooLarge = errors.New("the body is too large")
	errBusy     = errors.New("too many large bodies at once")
)

// readBody reads up to the usual limit at once, and up to the limit of agents
// after waiting for a token, so that the memory of large bodies is bounded. hurry
// is called with the token held: from there on the client may not take its time.
func (h *Handler) readBody(ctx context.Context, r io.Reader, hurry func()) (body, error) {
	limits := h.options.Limits
	var buffer bytes.Buffer
	if n, err := io.CopyN(&buffer, r, limits.Body+1); err != nil || n <= limits.Body {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return body{bytes: buffer.Bytes()}, err
	}
	b, err := h.largeBody(ctx)
	if err != nil {
		return body{}, err
	}
	hurry()
	n, err := io.CopyN(&buffer, r, limits.AgentBody-limits.Body)
	if errors.Is(err, io.EOF) {
		err = nil
	} else if err == nil && limits.Body+1+n > limits.AgentBody {
		err = errTooLarge
	}
	if err != nil {
		b.release()
		return body{}, err
	}
	b.bytes = buffer.Bytes()
	return b, nil
}

// largeBody waits for a token.
func (h *Handler) largeBody(ctx context.Context) (body, error) {
	timer := time.NewTimer(h.options.OperationTime)
	defer timer.Stop()
	select {
	case h.bodies <- struct{}{}:
		return body{token: h.bodies}, nil
	case <-timer.C:
		h.count.refused.Add(1)
		return body{}, errBusy
	case <-ctx.Done():
		return body{}, ctx.Err()
	}
}

// tooLarge refuses a large body of an operation that is not an agent's.
func (h *Handler) tooLarge(size int, operation *graphql.OperationContext) error {
	if int64(size) <= h.options.Limits.Body || forAgents(operation) {
		return nil
	}
	return h.refuse("body", "the request has %d bytes of at most %d; ask for less at a time", size, h.options.Limits.Body)
}

// parseParams reads the JSON of a GraphQL request, and nothing after it.
func parseParams(b []byte) (graphql.RawParams, error) {
	var p graphql.RawParams
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&p); err != nil {
		return p, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return p, errors.New("something follows the object")
	}
	return p, nil
}
