package agent

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/muster-cloud/muster"
)

const (
	maxNudge     = 4 << 10 // bytes
	nudgeTimeout = 5 * time.Second
)

// nudge is what a registry says when an instance's desired state has moved.
type nudge struct {
	Instance        muster.InstanceID `json:"instance"`
	DesiredRevision int64             `json:"desiredRevision"`
	Incarnation     int64             `json:"incarnation"`
}

// Handler is what the agent's port serves: nudges, and who is there. It tells
// nothing of what runs on the node.
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /instances/{id}/provision", a.provision)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /identity", a.identify)
	return mux
}

// provision takes a nudge: it only ever leads to a fetch from the agent's own
// registry, so it need not be believed.
func (a *Agent) provision(w http.ResponseWriter, r *http.Request) {
	var n nudge
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxNudge)).Decode(&n); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			refuse(w, http.StatusRequestEntityTooLarge, muster.Limit, "a nudge has at most 4 KiB")
			return
		}
		refuse(w, http.StatusBadRequest, muster.Invalid, `a nudge is JSON such as {"instance": "i-1", "desiredRevision": 7, "incarnation": 2}`)
		return
	}
	if string(n.Instance) != r.PathValue("id") {
		refuse(w, http.StatusBadRequest, muster.Invalid, "the instance of the path and of the body differ")
		return
	}
	is, ok := a.identity()
	if !ok || n.Incarnation != is.Incarnation {
		refuse(w, http.StatusConflict, muster.Conflict, "this agent has another incarnation: look at its registration")
		return
	}
	a.mu.Lock()
	stale := a.state.desired != nil && a.state.desired.DesiredRevision == n.DesiredRevision
	a.mu.Unlock()
	if !stale {
		a.fetchDue.raise()
	}
	w.WriteHeader(http.StatusAccepted)
}

// identify says who is there.
func (a *Agent) identify(w http.ResponseWriter, _ *http.Request) {
	is, ok := a.identity()
	if !ok {
		refuse(w, http.StatusServiceUnavailable, muster.Unavailable, "the agent has not begun yet: try again")
		return
	}
	answer(w, http.StatusOK, struct {
		UID         muster.NodeUID `json:"uid"`
		ID          muster.NodeID  `json:"id"`
		Incarnation int64          `json:"incarnation"`
	}{is.UID, a.o.ID, is.Incarnation})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may be gone
}

func refuse(w http.ResponseWriter, status int, code muster.Code, message string) {
	answer(w, status, struct {
		Code    muster.Code `json:"code"`
		Message string      `json:"message"`
	}{code, message})
}

// serve serves the agent's port until ctx ends: to the server of its cluster alone, once
// the node has a certificate.
func (a *Agent) serve(ctx context.Context, listener net.Listener) error {
	if a.o.Credentials.Secure() {
		listener = tls.NewListener(listener, a.o.Credentials.party().TakeServer())
	}
	server := &http.Server{
		Handler:           a.Handler(),
		ReadHeaderTimeout: nudgeTimeout,
		ReadTimeout:       nudgeTimeout,
		WriteTimeout:      nudgeTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(a.o.Logger.Handler(), slog.LevelDebug),
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		_ = server.Close() // no answer of it is worth waiting for
	})
	err := server.Serve(listener)
	if !stop() {
		<-closed
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
