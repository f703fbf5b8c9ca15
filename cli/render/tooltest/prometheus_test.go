package tooltest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

// TestPrometheus_ScrapesWhatTheFeedNames has a real Prometheus ask the server, read the
// file that is kept beside it, and scrape what both name, until that is gone.
func TestPrometheus_ScrapesWhatTheFeedNames(t *testing.T) {
	s := serve(t)
	target := newBackend(t).RegisterInput
	target.Protocol, target.Annotations = "metrics", muster.Map{"prometheus.io/scrape": "true", "prometheus.io/path": "/stats", "zone": "ä \"1\""}
	s.register(target)
	file := filepath.Join(s.dir, "targets.json")
	s.muster(0, "registration", "prometheus", "-o", file)
	p := s.startPrometheus(fmt.Sprintf(`scrape_configs:
  - {job_name: asked, scrape_interval: 200ms, scrape_timeout: 100ms, http_sd_configs: [{url: %q, refresh_interval: 200ms}]}
  - {job_name: read, scrape_interval: 200ms, scrape_timeout: 100ms, file_sd_configs: [{files: [%q], refresh_interval: 200ms}]}
`, s.url+"/discovery/prometheus", file))
	want := fmt.Sprintf("http://%s:%d/stats", target.Address, *target.Port)
	eventually(t, "both name it, and it is scraped", func() bool {
		jobs := map[string]bool{}
		for _, found := range p.targets(t) {
			labels := found.Labels
			if found.URL == want && labels.Cluster == "prod" && labels.Zone == target.Annotations["zone"] && !found.LastScrape.IsZero() {
				jobs[labels.Job] = true
			}
		}
		return jobs["asked"] && jobs["read"]
	})
	if _, err := s.api.Deregister(t.Context(), muster.DeregisterInput{
		Cluster: "prod", Protocol: "metrics", Service: "web", Address: target.Address, Port: target.Port,
	}); err != nil {
		t.Fatal(err)
	}
	s.muster(0, "registration", "prometheus", "-o", file, "--allow-empty")
	eventually(t, "it is forgotten", func() bool { return len(p.targets(t)) == 0 })
}

// scraped is a target as Prometheus tells it.
type scraped struct {
	URL        string    `json:"scrapeUrl"`
	LastScrape time.Time `json:"lastScrape"`
	Labels     struct {
		Job, Cluster, Zone string
	} `json:"labels"`
}

// prometheus is where one is asked.
type prometheus string

func (p prometheus) targets(t *testing.T) []scraped {
	t.Helper()
	answer, err := http.Get("http://" + string(p) + "/api/v1/targets?state=active")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var found struct {
		Data struct {
			ActiveTargets []scraped `json:"activeTargets"`
		} `json:"data"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&found); err != nil {
		t.Fatal(err)
	}
	return found.Data.ActiveTargets
}

func (s *site) startPrometheus(config string) prometheus {
	s.t.Helper()
	path := filepath.Join(s.dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		s.t.Fatal(err)
	}
	accepted(s.t, "promtool check config "+path)
	address := freeAddress(s.t)
	log, err := os.Create(filepath.Join(s.dir, "prometheus.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	process := exec.Command("prometheus", "--config.file="+path, "--storage.tsdb.path="+filepath.Join(s.dir, "tsdb"), "--web.listen-address="+address)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && s.t.Failed() {
			s.t.Logf("prometheus said:\n%s", text)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	listens(s.t, address)
	eventually(s.t, "it is ready", func() bool { // it listens before that
		answer, err := http.Get("http://" + address + "/-/ready")
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	return prometheus(address)
}
