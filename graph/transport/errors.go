package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/errcode"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

// present turns an error into what clients see. A *muster.Error is shown with its
// code; what the parser, the validator and the reading of arguments say is INVALID;
// the rest is INTERNAL and goes to the log under a reference.
func (h *Handler) present(ctx context.Context, err error) *gqlerror.Error {
	shown := &gqlerror.Error{}
	from, isGQL := errors.AsType[*gqlerror.Error](err)
	if isGQL {
		shown.Path, shown.Locations = from.Path, from.Locations
	}
	if known, ok := errors.AsType[*muster.Error](err); ok && known.Code != muster.Internal {
		return fill(shown, known)
	}
	switch {
	case isGQL && fromParser(from):
		shown.Path = nil // it names a variable, not a place in the answer
		return fill(shown, &muster.Error{Code: muster.Invalid, Message: from.Message, Field: variableOf(from.Path)})
	case isGQL && inArguments(ctx):
		return fill(shown, &muster.Error{Code: muster.Invalid, Message: from.Message, Field: argumentOf(ctx, from.Path)})
	case errors.Is(err, context.DeadlineExceeded):
		return fill(shown, muster.Errorf(muster.Unavailable, "the operation took longer than %s and was given up; a mutation may have happened: retry with the same requestId", h.options.OperationTime))
	case errors.Is(err, context.Canceled):
		return fill(shown, muster.Errorf(muster.Unavailable, "the operation was cancelled; a mutation may have happened: retry with the same requestId"))
	}
	return fill(shown, h.internal(ctx, err))
}

// internal logs an error and returns what is said of it outside.
func (h *Handler) internal(ctx context.Context, err error) *muster.Error {
	h.count.internal.Add(1)
	reference := strings.ToLower(rand.Text()[:12])
	attributes := []slog.Attr{slog.String("reference", reference), slog.Any("err", err)}
	if graphql.HasOperationContext(ctx) {
		attributes = append(attributes, slog.String("operation", graphql.GetOperationContext(ctx).OperationName))
	}
	h.options.Logger.LogAttrs(ctx, slog.LevelError, "internal error", attributes...)
	return &muster.Error{
		Code:    muster.Internal,
		Message: "internal error: the server's log has it under reference " + reference,
		Details: map[string]any{"reference": reference},
	}
}

func fill(shown *gqlerror.Error, e *muster.Error) *gqlerror.Error {
	shown.Message = e.Message
	shown.Extensions = make(map[string]any, len(e.Details)+2)
	for key, value := range e.Details {
		shown.Extensions[key] = value
	}
	shown.Extensions["code"] = e.Code
	if e.Field != "" {
		shown.Extensions["field"] = e.Field
	}
	return shown
}

// fromParser reports whether gqlgen says that a document, or its variables, are wrong.
func fromParser(e *gqlerror.Error) bool {
	code, _ := e.Extensions["code"].(string)
	return code == errcode.ParseFailed || code == errcode.ValidationFailed
}

// inArguments reports whether gqlgen was reading a field's arguments: it sets them
// when it is done.
func inArguments(ctx context.Context) bool {
	fc := graphql.GetFieldContext(ctx)
	return fc != nil && fc.Args == nil && fc.Field.Field != nil && fc.Field.Definition != nil &&
		len(fc.Field.Definition.Arguments) > 0
}

// variableOf is the field that a path such as variable.input.type names.
func variableOf(path ast.Path) string {
	if len(path) < 2 {
		return ""
	}
	return pathText(path[1:])
}

// argumentOf is the field below a resolver's own path.
func argumentOf(ctx context.Context, path ast.Path) string {
	own := graphql.GetFieldContext(ctx).Path()
	if len(path) <= len(own) {
		return ""
	}
	return pathText(path[len(own):])
}

// pathText leaves out the one argument of every mutation, so that a field is
// called the same whoever finds it wrong.
func pathText(path ast.Path) string {
	if len(path) > 1 && path[0] == ast.PathName("input") {
		path = path[1:]
	}
	return path.String()
}

// recovered makes an error of a panic.
func recovered(_ context.Context, v any) error {
	return fmt.Errorf("panic: %v\n%s", v, debug.Stack())
}

// failure is the list of the one error, presented.
func (h *Handler) failure(ctx context.Context, err error) gqlerror.List {
	return gqlerror.List{h.present(ctx, err)}
}

// rejected presents what CreateOperationContext found, the first few of it.
func (h *Handler) rejected(ctx context.Context, operation *graphql.OperationContext, found gqlerror.List) gqlerror.List {
	if len(found) > maxErrors {
		found = found[:maxErrors]
	}
	return h.exec.DispatchError(graphql.WithOperationContext(ctx, operation), found).Errors
}

// statusOf is the HTTP status of a request that is refused as a whole.
func statusOf(code muster.Code) int {
	switch code {
	case muster.Unauthenticated:
		return http.StatusUnauthorized
	case muster.Forbidden:
		return http.StatusForbidden
	case muster.Limit:
		return http.StatusTooManyRequests
	case muster.Unavailable:
		return http.StatusServiceUnavailable
	case muster.Internal:
		return http.StatusInternalServerError
	default:
		return http.StatusBadRequest
	}
}
