package render_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/render"
	"github.com/muster-cloud/muster/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// source is what is registered; safe for a watch beside changes.
type source struct {
	mu         sync.Mutex
	entries    []*client.Entry
	incomplete bool
	events     chan client.Event // of a watch
	asked      int
}

func (s *source) Registrations(context.Context, muster.RegistrationFilter, bool) (*client.Entries, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	asOf := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	return &client.Entries{Entries: s.entries, Complete: !s.incomplete, AsOf: asOf}, nil
}

func (s *source) set(entries ...*client.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = entries
}

func (s *source) setComplete(complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.incomplete = !complete
}

// WatchRegistrations tells what is there, and then what is sent to events.
func (s *source) WatchRegistrations(ctx context.Context, _ *muster.RegistrationFilter, _ client.WatchOptions, each func(client.Event) error) error {
	for _, e := range s.entries {
		if err := each(client.Event{Type: muster.EventPresent, Registration: e}); err != nil {
			return err
		}
	}
	if err := each(client.Event{Type: muster.EventSynced, Cursor: "c"}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-s.events:
			if err := each(e); err != nil {
				return err
			}
		}
	}
}

// entry is prod/http/web at the nth address.
func entry(n int) *client.Entry {
	return at(fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255))
}

func at(address string) *client.Entry {
	port := 8080
	return &client.Entry{
		Key: "prod/http/web/" + address, Cluster: "prod", Protocol: "http", Service: "web", Address: address, Port: &port,
		Priority: 100, Own: true, Owners: []string{"manual"}, Status: muster.EntryRegistered,
	}
}

func entries(n int) []*client.Entry {
	out := make([]*client.Entry, n)
	for i := range out {
		out[i] = entry(i + 1)
	}
	return out
}

// line prints an entry a line.
const line = `{{ range registrations "prod" "http" "web" "*" }}{{ .HostPort }}
{{ end }}`

// kept is a file that a test keeps, and what it is from.
type kept struct {
	t      *testing.T
	dir    string
	path   string
	source *source
	target render.Target
	opts   render.Options
}

func keep(t *testing.T, template string) *kept {
	t.Helper()
	dir := t.TempDir()
	k := &kept{t: t, dir: dir, path: filepath.Join(dir, "out.conf"), source: &source{}}
	k.target = render.Target{Output: k.path, Content: k.template(template)}
	k.opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	return k
}

func (k *kept) template(text string) render.Content {
	k.t.Helper()
	path := filepath.Join(k.dir, "template")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		k.t.Fatal(err)
	}
	content, err := render.ReadTemplate(path)
	if err != nil {
		k.t.Fatal(err)
	}
	return content
}

func (k *kept) renderer() *render.Renderer {
	k.t.Helper()
	r, err := render.New(k.source, []render.Target{k.target}, k.opts)
	if err != nil {
		k.t.Fatal(err)
	}
	return r
}

func (k *kept) once() error { return k.renderer().Once(k.t.Context()) }

// good renders n entries, which has to succeed, and returns the text.
func (k *kept) good(n int) string {
	k.t.Helper()
	k.source.set(entries(n)...)
	if err := k.once(); err != nil {
		k.t.Fatal(err)
	}
	text := k.read()
	if got := strings.Count(text, "\n"); got != n {
		k.t.Fatalf("%d lines for %d entries", got, n)
	}
	return text
}

func (k *kept) read() string {
	k.t.Helper()
	text, err := os.ReadFile(k.path)
	if err != nil {
		k.t.Fatal(err)
	}
	return string(text)
}

// refused wants a kind of failure, with words in its text.
func refused(t *testing.T, err error, kind render.Kind, words ...string) {
	t.Helper()
	e, ok := errors.AsType[*render.Error](err)
	if !ok || e.Kind != kind {
		t.Fatalf("the error is %v, not of the kind %s", err, kind)
	}
	for _, word := range words {
		if !strings.Contains(e.Error()+e.Output, word) {
			t.Errorf("%q does not say %q", e.Error()+e.Output, word)
		}
	}
}
