package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

// exchange is one request over HTTP and how it is answered.
type exchange struct {
	h         *Handler
	w         http.ResponseWriter
	r         *http.Request
	mediaType string
}

func (h *Handler) serveHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{h: h, w: w, r: r}
	defer func() {
		if v := recover(); v != nil {
			x.refuse(http.StatusInternalServerError, h.internal(r.Context(), recovered(r.Context(), v)))
		}
	}()
	var ok bool
	if x.mediaType, ok = negotiate(r.Header.Values("Accept")); !ok {
		x.mediaType = typeJSON
		x.refuse(http.StatusNotAcceptable, muster.Errorf(muster.Invalid, "accept %s or %s", typeResponse, typeJSON))
		return
	}
	if h.share(w, r) {
		return
	}
	if err := h.ownPage(r); err != nil {
		x.refuse(http.StatusForbidden, muster.Errorf(muster.Forbidden, "this page's origin may not call the server; allow it in the server's settings: %w", err))
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		x.refuseMethod("GET, POST", "the method %s is not served; use POST", r.Method)
		return
	}
	principal, err := h.options.Authenticate(r.Context(), r, nil)
	if err != nil {
		if muster.CodeOf(err) == muster.Unauthenticated {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		x.refuseError(err)
		return
	}
	params, size, release, ok := x.read()
	if !ok {
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(muster.WithPrincipal(r.Context(), principal), h.options.OperationTime)
	defer cancel()
	x.execute(graphql.StartOperationTrace(ctx), params, size)
}

// read takes the request's parameters from the query string or the body.
func (x *exchange) read() (params graphql.RawParams, size int, release func(), ok bool) {
	if x.r.Method == http.MethodGet {
		params, err := queryParams(x.r.URL.RawQuery)
		if err != nil {
			x.refuse(http.StatusBadRequest, muster.Errorf(muster.Invalid, "%w", err))
			return params, 0, nil, false
		}
		return x.complete(params, len(x.r.URL.RawQuery), func() {})
	}
	kind, parameters, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if charset := parameters["charset"]; err != nil || kind != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		x.refuse(http.StatusUnsupportedMediaType, muster.Errorf(muster.Invalid, "send the request as application/json in UTF-8"))
		return params, 0, nil, false
	}
	if most := x.h.options.Limits.AgentBody; x.r.ContentLength > most {
		x.refuseBody()
		return params, 0, nil, false
	}
	b, err := x.h.readBody(x.r.Context(), x.r.Body, x.hurry)
	if err != nil {
		x.refuseUnread(err)
		return params, 0, nil, false
	}
	if params, err = parseParams(b.bytes); err != nil {
		b.release()
		x.refuse(http.StatusBadRequest, muster.Errorf(muster.Invalid, "the body is not one GraphQL request; send a JSON object such as {\"query\": \"{ serverInfo { version } }\"}"))
		return params, 0, nil, false
	}
	return x.complete(params, len(b.bytes), b.release)
}

func (x *exchange) complete(params graphql.RawParams, size int, release func()) (graphql.RawParams, int, func(), bool) {
	if params.Query == "" {
		release()
		x.refuse(http.StatusBadRequest, muster.InvalidField("query", "it is missing; send the GraphQL text in it"))
		return params, 0, nil, false
	}
	params.Headers = x.r.Header
	return params, size, release, true
}

func queryParams(raw string) (graphql.RawParams, error) {
	var p graphql.RawParams
	values, err := url.ParseQuery(raw)
	if err != nil {
		return p, fmt.Errorf("the query string cannot be read: %w", err)
	}
	p.Query, p.OperationName = values.Get("query"), values.Get("operationName")
	for name, object := range map[string]*map[string]any{"variables": &p.Variables, "extensions": &p.Extensions} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(object); err != nil {
			return p, fmt.Errorf("%s has to be a JSON object", name)
		}
	}
	return p, nil
}

// execute runs the operation and writes the answer.
func (x *exchange) execute(ctx context.Context, params graphql.RawParams, size int) {
	operation, found := x.h.exec.CreateOperationContext(ctx, &params)
	if found != nil {
		x.reject(x.h.rejected(ctx, operation, found))
		return
	}
	if err := x.h.tooLarge(size, operation); err != nil {
		x.refuseError(err)
		return
	}
	switch kind := operation.Operation.Operation; {
	case x.r.Method == http.MethodGet && kind != ast.Query:
		x.refuseMethod("POST", "a %s needs POST; GET is for queries", kind)
		return
	case kind == ast.Subscription:
		x.reject(x.h.failure(ctx, muster.Errorf(muster.Invalid, "a subscription needs WebSocket with the subprotocol %s", subprotocol)))
		return
	}
	x.h.count.operations.Add(1)
	respond, ctx := x.h.exec.DispatchOperation(ctx, operation)
	response := respond(ctx)
	if response == nil {
		x.refuseError(ctx.Err())
		return
	}
	x.write(http.StatusOK, encode(response))
}

// reject answers a request that was understood but not executed: 200 in the older
// media type, 400 in the newer one.
func (x *exchange) reject(errs gqlerror.List) {
	status := http.StatusOK
	if x.mediaType == typeResponse {
		status = http.StatusBadRequest
	}
	x.write(status, encodeErrors(errs))
}

func (x *exchange) refuseError(err error) {
	shown := x.h.present(x.r.Context(), err)
	code, _ := shown.Extensions["code"].(muster.Code)
	x.write(statusOf(code), encodeErrors(gqlerror.List{shown}))
}

// hurry gives the client little time for what it still has to send.
func (x *exchange) hurry() {
	// A writer that knows no deadline is a test's.
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Now().Add(x.h.options.BodyTime))
}

// refuseUnread answers a request whose body could not be read, and does not wait
// for the rest of it.
func (x *exchange) refuseUnread(err error) {
	x.w.Header().Set("Connection", "close")
	switch {
	case errors.Is(err, errTooLarge):
		x.refuseBody()
	case errors.Is(err, errBusy):
		x.w.Header().Set("Retry-After", "5")
		x.refuse(http.StatusServiceUnavailable, muster.Errorf(muster.Unavailable, "too many large requests at once; nothing happened, try again in a moment"))
	case timedOut(err):
		x.refuse(http.StatusRequestTimeout, muster.Errorf(muster.Invalid, "the body came too slowly; send it at once"))
	default:
		x.refuse(http.StatusBadRequest, muster.Errorf(muster.Invalid, "the body could not be read: %w", err))
	}
}

func (x *exchange) refuseBody() {
	x.w.Header().Set("Connection", "close")
	most := x.h.options.Limits.AgentBody
	x.refuse(http.StatusRequestEntityTooLarge, x.h.refuse("body", "the body has more than %d bytes; ask for less at a time", most))
}

func (x *exchange) refuseMethod(allow, format string, args ...any) {
	x.w.Header().Set("Allow", allow)
	x.refuse(http.StatusMethodNotAllowed, muster.Errorf(muster.Invalid, format, args...))
}

func (x *exchange) refuse(status int, e *muster.Error) {
	x.write(status, encodeErrors(gqlerror.List{fill(&gqlerror.Error{}, e)}))
}

func (x *exchange) write(status int, b []byte) {
	header := x.w.Header()
	header.Set("Content-Type", x.mediaType+"; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	x.w.WriteHeader(status)
	_, _ = x.w.Write(b) // a client that left is no concern
}
