package server_test

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry/auth"
	"github.com/muster-cloud/muster/server"
)

// startOver runs a server on a directory until it serves and do has been done, and returns
// what Run did.
func startOver(t *testing.T, dir string, do func(*server.Server)) error {
	t.Helper()
	s, err := server.Open(t.Context(), server.Options{DataDir: dir, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	served := false
	eventually(t, "it serves, or ends", func() bool {
		select {
		case err = <-done:
			return true
		default:
		}
		response, err := (&http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get(s.URL() + "/readyz")
		if served = err == nil; served {
			_ = response.Body.Close()
		}
		return served
	})
	if served {
		if do != nil {
			do(s)
		}
		cancel()
		err = <-done
	}
	if closing := s.Close(); closing != nil {
		t.Error(closing)
	}
	return err
}

// opensAnything reports whether a server answers a key.
func opensAnything(t *testing.T, s *server.Server, key string) bool {
	t.Helper()
	c, err := client.New(client.Options{URL: s.URL(), Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.ServerInfo(t.Context())
	return err == nil
}

func TestAdminKey_OverStarts(t *testing.T) {
	for name, test := range map[string]struct {
		between func(t *testing.T, dir, key string) // two starts, in the first of which the key was used
		opens   bool                                // what the file has after the second
		same    bool                                // it has the same key
		code    muster.Code
	}{
		"nothing":          {func(*testing.T, string, string) {}, true, true, ""},
		"the file is gone": {func(t *testing.T, dir, _ string) { remove(t, server.AdminKeyFile(dir)) }, false, false, ""},
		"the database is new": {func(t *testing.T, dir, _ string) {
			for _, name := range []string{"muster.db", "muster.db-wal", "muster.db-shm"} {
				remove(t, filepath.Join(dir, name))
			}
		}, true, false, ""},
		"the file has another cluster's key": {func(t *testing.T, dir, _ string) {
			write(t, server.AdminKeyFile(dir), auth.Key{ID: "k-1", Secret: auth.NewSecret()}.Text(), 0o600)
		}, false, false, ""},
		"others can read the file": {func(t *testing.T, dir, key string) {
			write(t, server.AdminKeyFile(dir), key, 0o644)
		}, false, false, muster.Forbidden},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var key string
			err := startOver(t, dir, func(s *server.Server) {
				key = adminKey(t, dir)
				if !opensAnything(t, s, key) {
					t.Error("the first key opens nothing")
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			test.between(t, dir, key)
			err = startOver(t, dir, func(s *server.Server) {
				now := adminKey(t, dir)
				if opens := now != "" && opensAnything(t, s, now); opens != test.opens || (now == key) != test.same {
					t.Errorf("the file has a key that opens: %v, the same: %v", opens, now == key)
				}
			})
			if muster.CodeOf(err) != test.code {
				t.Errorf("it ended with %v", err)
			}
			if test.code != "" && (!strings.Contains(err.Error(), "chmod 600") || strings.Contains(err.Error(), key)) {
				t.Error(err)
			}
		})
	}
}

// adminKey is the key in the file; empty when there is none.
func adminKey(t *testing.T, dir string) string {
	t.Helper()
	path := server.AdminKeyFile(dir)
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	return strings.TrimSpace(string(text))
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}
