package server_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	feedwire "github.com/muster-cloud/muster/registration"
	"github.com/muster-cloud/muster/server"
)

// openWithFeed opens a server with a NATS server of its own, at which others reach it too.
func openWithFeed(t *testing.T, dir string) (*server.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := server.Open(t.Context(), server.Options{
		DataDir: dir, Listen: "127.0.0.1:0", Keyless: true, Logger: slog.New(slog.DiscardHandler),
		Feed: server.FeedOptions{Publish: "jetstream", Listen: address, TokenFile: token},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, "nats://s3cret@" + address
}

// feedReader reads the stream from outside, as another cluster would.
type feedReader struct {
	t      *testing.T
	stream *feedwire.Stream
	conn   *feedwire.Conn
}

func readFeed(t *testing.T, url string) *feedReader {
	t.Helper()
	conn, err := feedwire.Connect(feedwire.ConnectOptions{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return &feedReader{t, feedwire.NewStream(conn, feedwire.StreamOptions{}), conn}
}

// held are the entries in the stream.
func (f *feedReader) held() []feedwire.Message {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	all, err := feedwire.Held(ctx, f.stream)
	if err != nil {
		return nil
	}
	var entries []feedwire.Message
	for _, m := range all {
		if m.Gone == "" {
			entries = append(entries, m)
		}
	}
	return entries
}

func TestFeed_PublishesOwnAndFollowsOthers(t *testing.T) {
	dir := t.TempDir()
	s, url := openWithFeed(t, dir)
	stop := run(t, s)
	c := connect(t, s)
	port := 80
	own := muster.RegisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.1", Port: &port}
	if _, err := c.Register(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	long := own
	long.Address, long.TTL = "192.0.2.9", new(25*time.Hour)
	if _, err := c.Register(t.Context(), long); muster.CodeOf(err) != muster.Invalid || !strings.Contains(err.Error(), "longer than the feed keeps an entry") {
		t.Errorf("what the stream would cut short: %v", err)
	}
	feed := readFeed(t, url)
	eventually(t, "the entry is in the stream", func() bool {
		held := feed.held()
		return len(held) == 1 && held[0].Entry != nil && held[0].Entry.Service == "web" && held[0].Origin != ""
	})
	theirs := muster.Registration{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.2", Port: &port, Priority: 10}
	other := feedwire.NewJetStream(feed.stream, "another-cluster")
	if _, err := other.Publish(t.Context(), &theirs, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what others wrote is found", func() bool {
		found, err := c.Registrations(t.Context(), muster.RegistrationFilter{Service: "web"}, false)
		return err == nil && len(found.Entries) == 2 && found.Complete && found.Entries[1].Origin == "another-cluster" && !found.Entries[1].Own
	})
	if _, err := c.Deregister(t.Context(), muster.DeregisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.1", Port: &port}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the entry is out of the stream", func() bool { return len(feed.held()) == 1 })
	discovered(t, s)
	damage(t, feed, url, c)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// discovered asks for targets as Prometheus does.
func discovered(t *testing.T, s *server.Server) {
	t.Helper()
	ask := func(query, tag string) (int, string, string) {
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr().String()+"/discovery/prometheus"+query, nil)
		request.Header.Set("If-None-Match", tag)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(body), answer.Header.Get("ETag")
	}
	defer http.DefaultClient.CloseIdleConnections()
	status, body, tag := ask("", "")
	if status != http.StatusOK || strings.TrimSpace(body) != "[]" { // nobody said that it may be scraped
		t.Errorf("%d %s", status, body)
	}
	for given, want := range map[string]int{
		tag: http.StatusNotModified, "W/" + tag: http.StatusNotModified, `"x", ` + tag: http.StatusNotModified, "*": http.StatusNotModified,
		`"x"`: http.StatusOK, strings.Trim(tag, `"`): http.StatusOK,
	} {
		if status, body, again := ask("", given); status != want || again != tag || (body == "") != (want == http.StatusNotModified) {
			t.Errorf("who has %s gets %d %q", given, status, body)
		}
	}
	for query, field := range map[string]string{"?address=nowhere": "address", "?include=unhealty": "include", "?clster=prod": "clster"} {
		if status, body, _ = ask(query, ""); status != http.StatusBadRequest || !strings.Contains(body, field) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

// Prometheus is told of what is unwell when it asks for that, and of how it is.
func TestDiscovery_IncludesWhatIsUnwell(t *testing.T) {
	w := newTown(t)
	w.must(admin, fmt.Sprintf(`mutation { deployService(input: {instanceId: %q, name: "exporter", command: ["x"], port: 9100, publish: {port: 30099}, registerWhenStable: [
		{cluster: "prod", protocol: "prometheus"}]}) { service { id } } }`, w.ids["own instance"]))
	ask := func(query string) string {
		a := w.http(w.fresh(viewer), http.MethodGet, "/discovery/prometheus"+query, "")
		if a.status != http.StatusOK {
			t.Fatalf("%+v", a)
		}
		return a.body
	}
	if body := ask(""); strings.TrimSpace(body) != "[]" {
		t.Errorf("what is not stable is among %s", body)
	}
	if body := ask("?include=unhealthy&cluster=prod"); !strings.Contains(body, `"127.0.0.1:30099"`) || !strings.Contains(body, `"muster_health":"UN`) {
		t.Errorf("it is not in %s", body)
	}
	if body := ask("?include=unhealthy&cluster=other"); strings.TrimSpace(body) != "[]" {
		t.Errorf("of another cluster there is %s", body)
	}
}

// damage writes a stray message of our origin into the stream, which the verification finds
// and repairs.
func damage(t *testing.T, feed *feedReader, url string, c *client.Client) {
	t.Helper()
	origin, err := c.ServerInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	port := 81
	stray := muster.Registration{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.3", Port: &port, Priority: 10}
	if _, err := feedwire.NewJetStream(feed.stream, origin.ClusterUID).Publish(t.Context(), &stray, 0); err != nil {
		t.Fatal(err)
	}
	findings, err := c.VerifyFeed(t.Context(), false)
	if err != nil || len(findings) != 1 || findings[0].Damage != string(feedwire.Stray) {
		t.Fatalf("found %+v, %v", findings, err)
	}
	if _, err := c.VerifyFeed(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stray entry is gone", func() bool { return len(feed.held()) == 1 })
}

func TestFeed_GoesOnWithoutNATS(t *testing.T) {
	s, err := server.Open(t.Context(), server.Options{
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", Keyless: true, Logger: slog.New(slog.DiscardHandler),
		Feed: server.FeedOptions{Publish: "jetstream", URL: "nats://127.0.0.1:1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	defer run(t, s)()
	c := connect(t, s)
	port := 80
	if _, err := c.Register(t.Context(), muster.RegisterInput{Cluster: "prod", Protocol: "http", Service: "web", Address: "192.0.2.1", Port: &port}); err != nil {
		t.Fatal(err)
	}
	found, err := c.Registrations(t.Context(), muster.RegistrationFilter{}, false)
	if err != nil || len(found.Entries) != 1 {
		t.Fatalf("found %+v, %v", found, err)
	}
	eventually(t, "a condition says so", func() bool {
		h, err := c.ClusterHealth(t.Context())
		if err != nil {
			return false
		}
		for _, condition := range h.Conditions {
			if condition.Name == muster.FeedUnreachable {
				return true
			}
		}
		return false
	})
}
