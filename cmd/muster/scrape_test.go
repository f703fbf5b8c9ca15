package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const scrapeConf = `global: {scrape_interval: 1s}
scrape_configs:
  - job_name: muster
    http_sd_configs:
      - url: http://127.0.0.1:9000/discovery/prometheus?cluster=prod
        refresh_interval: 1s
        authorization: {type: Bearer, credentials_file: %s/key}
`

// scraped waits until Prometheus, which asks the server with the key of a VIEWER, scrapes exactly these services.
func (f *front) scraped(names ...string) {
	f.t.Helper()
	if f.prometheus == nil {
		f.startPrometheus()
	}
	var want []string
	for _, name := range names {
		want = append(want, f.at(name))
	}
	slices.Sort(want)
	var got []string
	defer func() { f.t.Logf("Prometheus scrapes %v, want %v", got, want) }()
	until(f.t, fmt.Sprint("Prometheus scrapes ", names), func() bool {
		got = f.targets()
		return slices.Equal(got, want)
	})
}

func (f *front) startPrometheus() {
	f.t.Helper()
	var made struct{ Text string }
	out := f.mustCLI("key", "create", "prometheus", "--role", "viewer", "-o", "json")
	if err := json.Unmarshal([]byte(out), &made); err != nil || made.Text == "" {
		f.t.Fatalf("made the key %s: %v", out, err)
	}
	f.write("key", made.Text)
	conf := f.write("prometheus.yml", fmt.Sprintf(scrapeConf, f.dir))
	command(f.t, "promtool", "check", "config", conf)
	f.prometheus = f.run("prometheus", "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(f.dir, "tsdb"),
		"--web.listen-address=127.0.0.1:9090")
}

// targets are where Prometheus has scraped something and found it well, sorted.
func (f *front) targets() []string {
	body, err := f.ask("http://127.0.0.1:9090/api/v1/query?query=muster_test_up")
	if err != nil {
		return nil
	}
	var found struct {
		Data struct {
			Result []struct {
				Metric struct{ Instance, Service, Cluster string }
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &found); err != nil {
		f.t.Fatal(err)
	}
	var at []string
	for _, r := range found.Data.Result {
		if r.Metric.Service != "web" || r.Metric.Cluster != "prod" {
			f.t.Fatalf("its labels are %+v", r.Metric)
		}
		at = append(at, r.Metric.Instance)
	}
	slices.Sort(at)
	return at
}
