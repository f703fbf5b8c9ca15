package registration_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

func target(service, address string, port int, annotations ...string) registration.Target {
	r := entry(service, address, port, 0)
	r.Annotations = muster.Map{}
	for _, a := range annotations {
		k, v, _ := strings.Cut(a, "=")
		r.Annotations[k] = v
	}
	return registration.Target{Registration: r}
}

const scrape = "prometheus.io/scrape=true"

func TestPrometheus(t *testing.T) {
	unhealthy := target("web", "10.0.0.2", 80, scrape)
	unhealthy.Health = "UNHEALTHY"
	protocol := target("node", "10.0.0.1", 9100)
	protocol.Protocol = "prometheus"
	for _, c := range []struct {
		name    string
		targets []registration.Target
		want    string
	}{
		{"none", nil, "[]\n"},
		{"not asked for", []registration.Target{target("web", "10.0.0.1", 80), target("web", "10.0.0.2", 80, "prometheus.io/scrape=True"), target("web", "10.0.0.3", 80, "prometheus.io/scrape=false")}, "[]\n"},
		{"no port", []registration.Target{target("web", "10.0.0.1", 0, scrape), target("prometheus", "10.0.0.1", 0)}, "[]\n"},
		{"one", []registration.Target{target("web", "10.0.0.1", 80, scrape)}, `[
{"labels":{"cluster":"prod","protocol":"http","service":"web"},"targets":["10.0.0.1:80"]}
]
`},
		{"prometheus by name", []registration.Target{target("prometheus", "10.0.0.1", 9090), target("prometheus", "10.0.0.2", 9090, "prometheus.io/scrape=no"), target("prometheus2", "10.0.0.1", 80), protocol}, `[
{"labels":{"cluster":"prod","protocol":"http","service":"prometheus"},"targets":["10.0.0.1:9090"]},
{"labels":{"cluster":"prod","protocol":"prometheus","service":"node"},"targets":["10.0.0.1:9100"]}
]
`},
		{"numbers, not text, and IPv6 in brackets", []registration.Target{target("web", "2001:db8::5", 80, scrape), target("web", "10.0.0.10", 80, scrape), target("web", "10.0.0.9", 8080, scrape), target("web", "10.0.0.9", 80, scrape)}, `[
{"labels":{"cluster":"prod","protocol":"http","service":"web"},"targets":["10.0.0.9:80","10.0.0.9:8080","10.0.0.10:80","[2001:db8::5]:80"]}
]
`},
		{"a group for each set of labels", []registration.Target{target("web", "10.0.0.1", 80, scrape, "version=1"), target("web", "10.0.0.2", 80, scrape, "version=2"), target("web", "10.0.0.3", 80, scrape, "version=1")}, `[
{"labels":{"cluster":"prod","protocol":"http","service":"web","version":"1"},"targets":["10.0.0.1:80","10.0.0.3:80"]},
{"labels":{"cluster":"prod","protocol":"http","service":"web","version":"2"},"targets":["10.0.0.2:80"]}
]
`},
		{"which annotations are labels", []registration.Target{target("web", "10.0.0.1", 80, scrape, "cluster=x", "service=x", "protocol=x", "muster_health=x", "__address__=x", "_a=1", "a-b=x", "1a=x", "empty=", "a.b=x", `quote="<&>`, "unicode=grüße")}, `[
{"labels":{"_a":"1","cluster":"prod","protocol":"http","quote":"\"\u003c\u0026\u003e","service":"web","unicode":"grüße"},"targets":["10.0.0.1:80"]}
]
`},
		{"path and scheme", []registration.Target{target("web", "10.0.0.1", 80, scrape, "prometheus.io/path=/m", "prometheus.io/scheme=https")}, `[
{"labels":{"__metrics_path__":"/m","__scheme__":"https","cluster":"prod","protocol":"http","service":"web"},"targets":["10.0.0.1:80"]}
]
`},
		{"health", []registration.Target{unhealthy, target("web", "10.0.0.1", 80, scrape)}, `[
{"labels":{"cluster":"prod","muster_health":"UNHEALTHY","protocol":"http","service":"web"},"targets":["10.0.0.2:80"]},
{"labels":{"cluster":"prod","protocol":"http","service":"web"},"targets":["10.0.0.1:80"]}
]
`},
		{"the same twice", []registration.Target{target("web", "10.0.0.1", 80, scrape), target("web", "10.0.0.1", 80, scrape)}, `[
{"labels":{"cluster":"prod","protocol":"http","service":"web"},"targets":["10.0.0.1:80"]}
]
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := registration.Prometheus(c.targets)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
			if !json.Valid(got) {
				t.Error("it is no JSON")
			}
		})
	}
}

func manyTargets(n int) []registration.Target {
	targets := make([]registration.Target, n)
	for i := range targets {
		targets[i] = target(fmt.Sprintf("s%d", i%100), fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), 80, scrape, fmt.Sprintf("zone=z%d", i%3))
	}
	return targets
}

func TestPrometheus_SameEntriesSameBytes(t *testing.T) {
	targets := manyTargets(10_000)
	want, err := registration.Prometheus(targets)
	if err != nil {
		t.Fatal(err)
	}
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	got, err := registration.Prometheus(targets)
	if err != nil || string(got) != string(want) {
		t.Errorf("another order gives other bytes (%v)", err)
	}
	var groups []struct {
		Targets []string
		Labels  map[string]string
	}
	if err := json.Unmarshal(got, &groups); err != nil || len(groups) != 300 {
		t.Errorf("%d groups, %v", len(groups), err)
	}
	n := 0
	for _, g := range groups {
		n += len(g.Targets)
	}
	if n != len(targets) {
		t.Errorf("%d targets", n)
	}
}

func BenchmarkPrometheus10000(b *testing.B) {
	targets := manyTargets(10_000)
	for b.Loop() {
		if _, err := registration.Prometheus(targets); err != nil {
			b.Fatal(err)
		}
	}
}
