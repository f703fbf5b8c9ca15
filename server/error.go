package server

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/muster-cloud/muster"
)

// writeError answers with a GraphQL error body, which every client reads.
func writeError(w http.ResponseWriter, status int, e *muster.Error) {
	type graphQLError struct {
		Message    string         `json:"message"`
		Extensions map[string]any `json:"extensions"`
	}
	extensions := map[string]any{}
	maps.Copy(extensions, e.Details)
	extensions["code"] = e.Code
	if e.Field != "" {
		extensions["field"] = e.Field
	}
	body, err := json.Marshal(map[string]any{"errors": []graphQLError{{Message: e.Message, Extensions: extensions}}})
	if err != nil {
		http.Error(w, e.Message, status)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}

// statusOf is the HTTP status that goes with a code.
func statusOf(code muster.Code) int {
	switch code {
	case muster.Invalid:
		return http.StatusBadRequest
	case muster.Unauthenticated:
		return http.StatusUnauthorized
	case muster.Forbidden:
		return http.StatusForbidden
	case muster.NotFound:
		return http.StatusNotFound
	case muster.Conflict:
		return http.StatusConflict
	case muster.Limit:
		return http.StatusTooManyRequests
	case muster.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
