package transport

import (
	"encoding/json"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
)

// encode writes a response into bytes of its own: gqlgen uses those of a
// subscription again. Without errors it spares the data another pass through JSON.
func encode(r *graphql.Response) []byte {
	if len(r.Errors) == 0 && len(r.Extensions) == 0 {
		b := make([]byte, 0, len(r.Data)+len(`{"data":}`))
		b = append(append(b, `{"data":`...), r.Data...)
		return append(b, '}')
	}
	return encodeJSON(r)
}

// encodeErrors writes a response that has no data: nothing was executed.
func encodeErrors(errs gqlerror.List) []byte {
	return encodeJSON(struct {
		Errors gqlerror.List `json:"errors"`
	}{errs})
}

// encodeJSON writes what this package and gqlgen make; should an error's details
// not be JSON, it says no more than that.
func encodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		return []byte(`{"errors":[{"message":"internal error","extensions":{"code":"INTERNAL"}}]}`)
	}
	return b
}

// forAgents reports whether an operation is one whose body may be large.
func forAgents(operation *graphql.OperationContext) bool {
	if operation.Operation.Operation != ast.Mutation {
		return false
	}
	for _, selection := range operation.Operation.SelectionSet {
		field, ok := selection.(*ast.Field)
		if !ok || field.Name != "registerNode" && field.Name != "reportInstances" {
			return false
		}
	}
	return true
}
