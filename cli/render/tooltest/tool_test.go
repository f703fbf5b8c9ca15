package tooltest_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// many is how many entries a big cloud has.
const many = 10_000

// load is what is registered, once for each protocol that a template is for.
type load struct {
	name    string
	entries []muster.RegisterInput // of web, without a protocol
	want    []string               // places that are in every file
}

func web(address string, annotations muster.Map) muster.RegisterInput {
	return muster.RegisterInput{Cluster: "prod", Service: "web", Address: address, Port: new(8080), Annotations: annotations}
}

func loads() []load {
	all := load{name: "10,000", want: []string{"10.0.0.0:8080", "10.0.39.15:8080"}}
	for n := range many {
		all.entries = append(all.entries, web(fmt.Sprintf("10.0.%d.%d", n>>8, n&255), nil))
	}
	hostile := func(address, text string) muster.RegisterInput {
		return web(address, muster.Map{
			"note": text, "weight": text, "prometheus.io/scrape": "true", "prometheus.io/path": text, "version": text, "odd-key": text,
		})
	}
	return []load{
		{name: "none"},
		{name: "one", entries: []muster.RegisterInput{web("10.0.0.1", muster.Map{"weight": "7", "note": "the first"})}, want: []string{"10.0.0.1:8080"}},
		{name: "IPv6", entries: []muster.RegisterInput{web("2001:db8::5", nil), web("::ffff:10.0.0.7", nil), web("10.0.0.1", nil)}, want: []string{
			"[2001:db8::5]:8080", "[::ffff:10.0.0.7]:8080", "10.0.0.1:8080",
		}},
		{name: "no port", entries: []muster.RegisterInput{
			{Cluster: "prod", Service: "web", Address: "10.0.0.3"}, web("10.0.0.4", nil),
		}, want: []string{"10.0.0.4:8080"}},
		{name: "quotes and unicode", entries: []muster.RegisterInput{
			hostile("10.0.0.1", `"double" 'single' \back\ $dollar {{ braces }} %percent`),
			hostile("10.0.0.2", "one\u2028server 192.0.2.1:1;\u2029}# more"),
			hostile("10.0.0.3", "Grüße aus Zürich 🦀 日本語 ʼ \u202e"),
			hostile("10.0.0.4", "; } events { } #"),
			hostile("10.0.0.5", "-1"),
		}, want: []string{"10.0.0.1:8080", "10.0.0.5:8080"}},
		all,
	}
}

func (l load) over(protocol string) []muster.RegisterInput {
	out := make([]muster.RegisterInput, len(l.entries))
	for i, e := range l.entries {
		e.Protocol = protocol
		out[i] = e
	}
	return out
}

// holds wants every place of a load in a text, and nothing that a stranger smuggled in.
func (l load) holds(t *testing.T, text string) {
	t.Helper()
	for _, place := range l.want {
		if !strings.Contains(text, place) {
			t.Errorf("%s is not in it:\n%.2000s", place, text)
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "server 192.0.2.1") {
			t.Errorf("an annotation became %q", line)
		}
	}
}

// TestExamples_AreAccepted has each tool read what its template makes of each load.
func TestExamples_AreAccepted(t *testing.T) {
	for _, l := range loads() {
		t.Run(l.name, func(t *testing.T) {
			s := serve(t)
			s.register(l.over("http")...)
			s.register(l.over("metrics")...)
			s.nginx()
			l.holds(t, s.render("nginx.tmpl", "upstreams.conf", "nginx -t -c "+s.dir+"/nginx.conf"))
			l.holds(t, s.render("haproxy.tmpl", "haproxy.cfg", "haproxy -c -f {}"))
			l.holds(t, s.render("prometheus.tmpl", "prometheus.yml", "promtool check config {}"))
			s.targets(l)
		})
	}
}

// TestMetrics_AreAccepted has Prometheus' own checker read what the server and a render tell of themselves.
func TestMetrics_AreAccepted(t *testing.T) {
	s := serve(t)
	s.register(load{entries: []muster.RegisterInput{web("10.0.0.1", nil), web("2001:db8::5", muster.Map{"note": `"quoted" \ ü`})}}.over("http")...)
	file := filepath.Join(s.dir, `odd "name" \ ü.conf`)
	ours := filepath.Join(s.dir, "render.prom")
	s.muster(0, "render", "-t", example("nginx.tmpl"), "-o", file, "--metrics-file", ours)
	accepted(t, "promtool check metrics <"+ours)
	served := filepath.Join(s.dir, "server.prom")
	text := s.ask("/metrics")
	for _, name := range []string{"muster_registration_up 1", "muster_registration_entries 2", "muster_registration_refused 0"} {
		if !strings.Contains(text, name+"\n") {
			t.Errorf("%s is not in the metrics", name)
		}
	}
	// That of Go's own has a help that the checker does not like.
	kept := strings.Builder{}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "muster_") {
			kept.WriteString(line)
		}
	}
	if err := os.WriteFile(served, []byte(kept.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	accepted(t, "promtool check metrics <"+served)
}

// nginx writes the configuration that includes what is rendered.
func (s *site) nginx() {
	s.t.Helper()
	text := fmt.Sprintf("error_log stderr;\npid %[1]s/nginx.pid;\nevents {}\nhttp { access_log off; include %[1]s/up*.conf; }\n", s.dir)
	if err := os.WriteFile(filepath.Join(s.dir, "nginx.conf"), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// ask returns what the server answers to who asks for a path.
func (s *site) ask(path string) string {
	s.t.Helper()
	defer http.DefaultClient.CloseIdleConnections()
	answer, err := http.Get(s.url + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		s.t.Fatalf("%s, %v: %.300s", answer.Status, err, body)
	}
	return string(body)
}

// targets writes the file for file_sd and has Prometheus' own checker read it.
func (s *site) targets(l load) {
	s.t.Helper()
	path := filepath.Join(s.dir, "targets.json")
	s.muster(0, "registration", "prometheus", "-o", path, "--protocol", "metrics")
	config := filepath.Join(s.dir, "sd.yml")
	text := "scrape_configs:\n  - job_name: muster\n    file_sd_configs: [{files: [" + strconv.Quote(path) + "]}]\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
	accepted(s.t, "promtool check config "+config)
	written, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	if asked := s.ask("/discovery/prometheus?protocol=metrics"); asked != string(written) {
		s.t.Errorf("who asks the server gets\n%.300s\nand the file has\n%.300s", asked, written)
	}
	var groups []struct {
		Targets []string
		Labels  map[string]string
	}
	if err := json.Unmarshal(written, &groups); err != nil || groups == nil {
		s.t.Fatalf("%v: %.300s", err, written)
	}
	scraped := 0
	for _, e := range l.entries {
		if e.Annotations["prometheus.io/scrape"] == "true" {
			scraped++
		}
	}
	for _, g := range groups {
		scraped -= len(g.Targets)
		if g.Labels["cluster"] != "prod" || g.Labels["service"] != "web" || g.Labels["odd-key"] != "" {
			s.t.Errorf("the labels are %v", g.Labels)
		}
	}
	if scraped != 0 {
		s.t.Errorf("%d targets are missing", scraped)
	}
}
