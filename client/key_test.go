package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/muster-cloud/muster/client"
)

// TestKey_DoesNotFollowARedirect: another port of the same host is another server.
func TestKey_DoesNotFollowARedirect(t *testing.T) {
	var asked atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer elsewhere.Close()
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		var presented atomic.Value
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			presented.Store(r.Header.Get("Authorization"))
			http.Redirect(w, r, elsewhere.URL, status)
		}))
		c, err := client.New(client.Options{URL: server.URL, Key: "hush", Tries: 1})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.ServerInfo(context.Background()); err == nil {
			t.Errorf("%d: it was no error", status)
		}
		if presented.Load() != "Bearer hush" {
			t.Errorf("%d: it presented %v", status, presented.Load())
		}
		if err := c.WatchNodes(t.Context(), nil, client.WatchOptions{}, nil); err == nil {
			t.Errorf("%d: watching was no error", status)
		}
		_ = c.Close()
		server.Close()
	}
	if asked.Load() != 0 {
		t.Errorf("%d requests went elsewhere", asked.Load())
	}
}
