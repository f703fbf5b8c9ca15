package tooltest_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

// site is a real server, and a directory for what is rendered.
type site struct {
	t   *testing.T
	api *client.Client
	url string
	dir string
}

func serve(t *testing.T) *site {
	t.Helper()
	running, err := server.Open(t.Context(), server.Options{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", Keyless: true, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- running.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := running.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	s := &site{t: t, url: "http://" + running.Addr().String(), dir: t.TempDir()}
	if s.api, err = client.New(client.Options{URL: s.url}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.api.Close() })
	return s
}

// register enters entries by hand, many at a time.
func (s *site) register(entries ...muster.RegisterInput) {
	s.t.Helper()
	g, ctx := errgroup.WithContext(s.t.Context())
	g.SetLimit(64)
	for _, in := range entries {
		g.Go(func() error {
			_, err := s.api.Register(ctx, in)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		s.t.Fatal(err)
	}
}

// muster runs one command line, which has to end with a code.
func (s *site) muster(code int, args ...string) (out, said string) {
	s.t.Helper()
	return s.musterUntil(s.t.Context(), code, args...)
}

func (s *site) musterUntil(ctx context.Context, code int, args ...string) (out, said string) {
	s.t.Helper()
	var stdout, stderr bytes.Buffer
	got := cli.Main(ctx, args, cli.Std{
		Program: "muster", In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		LookupEnv: func(name string) (string, bool) {
			return map[string]string{"MUSTER_SERVER": s.url}[name], name == "MUSTER_SERVER"
		},
	})
	if got != code {
		s.t.Errorf("muster %s ended with %d:\n%.3000s", strings.Join(args, " "), got, stderr.String())
	}
	return stdout.String(), stderr.String()
}

// render renders an example with a check of its tool, which is run once more by itself.
func (s *site) render(template, name, check string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	s.muster(0, "render", "-t", example(template), "-o", path, "--check", check, "--allow-empty", "--max-shrink", "100")
	accepted(s.t, strings.ReplaceAll(check, "{}", path))
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

func example(name string) string {
	return filepath.Join("..", "..", "..", "examples", "templates", name)
}

// accepted wants a command to succeed.
func accepted(t *testing.T, line string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%.3000s", line, err, out)
	}
}

// eventually polls what other processes make true soon.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}
