package server

import (
	"encoding/json"
	"mime"
	"net/http"

	"github.com/muster-cloud/muster"
)

// signIn exchanges the code of a one-time link for an access key: POST /sign-in with
// {"code": "…"} answers {"key": "…"}.
func (s *Server) signIn() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			writeError(w, http.StatusUnsupportedMediaType, muster.Errorf(muster.Invalid, "send the code as application/json"))
			return
		}
		var in struct {
			Code string `json:"code"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil {
			writeError(w, http.StatusBadRequest, muster.Errorf(muster.Invalid, `send a JSON object such as {"code": "…"}`))
			return
		}
		addr := remote(r)
		key, err := s.registry.RedeemSignIn(r.Context(), in.Code, addr.String())
		if err != nil {
			if muster.CodeOf(err) == muster.Unauthenticated {
				err = s.door.failed(addr, "signIn", err)
			}
			refuseCaller(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(map[string]string{"key": key})
	})
}

// signOut ends the session that the caller presents: POST /sign-out.
func (s *Server) signOut() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.registry.SignOut(r.Context()); err != nil {
			refuseCaller(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
