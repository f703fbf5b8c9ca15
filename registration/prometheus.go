package registration

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-cloud/muster"
)

// The annotations that Prometheus' users know.
const (
	annotationScrape = "prometheus.io/scrape"
	annotationPath   = "prometheus.io/path"
	annotationScheme = "prometheus.io/scheme"
	labelHealth      = "muster_health"
)

// placed is a target with its address as a number: parsing it at each comparison takes
// longer than everything else.
type placed struct {
	Target
	addr netip.Addr
}

// prometheusLabel is an annotation's key that can be a label.
var prometheusLabel = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Target is an entry that Prometheus may be told of.
type Target struct {
	*muster.Registration
	Health string // becomes the label muster_health; "": no such label
}

// targetGroup is targets with the same labels, as Prometheus reads them.
type targetGroup struct {
	Labels  map[string]string `json:"labels"`
	Targets []string          `json:"targets"`
}

// Prometheus writes entries as Prometheus reads them from a file or over HTTP: one group, and
// line, for each set of labels. The same entries give the same bytes; none give an empty list.
//
// A service or protocol named prometheus is in unless its annotation prometheus.io/scrape is
// something else than true; every other is in only when it is true. What has no port is out.
func Prometheus(targets []Target) ([]byte, error) {
	scraped := make([]placed, 0, len(targets))
	for _, t := range targets {
		if isScraped(t.Registration) {
			addr, _ := netip.ParseAddr(t.Address)
			scraped = append(scraped, placed{t, addr})
		}
	}
	slices.SortFunc(scraped, func(a, b placed) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(*a.Port, *b.Port)) })
	groups := map[string]*targetGroup{} // by their labels as text, whose keys are sorted
	for _, t := range scraped {
		labels := labelsOf(t.Target)
		key, err := json.Marshal(labels)
		if err != nil {
			return nil, err
		}
		g := groups[string(key)]
		if g == nil {
			g = &targetGroup{Labels: labels}
			groups[string(key)] = g
		}
		target := net.JoinHostPort(t.Address, strconv.Itoa(*t.Port))
		if n := len(g.Targets); n == 0 || g.Targets[n-1] != target {
			g.Targets = append(g.Targets, target)
		}
	}
	return writeGroups(groups)
}

func writeGroups(groups map[string]*targetGroup) ([]byte, error) {
	if len(groups) == 0 {
		return []byte("[]\n"), nil
	}
	var out bytes.Buffer
	separator := "[\n"
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		line, err := json.Marshal(groups[key])
		if err != nil {
			return nil, err
		}
		out.WriteString(separator)
		out.Write(line)
		separator = ",\n"
	}
	out.WriteString("\n]\n")
	return out.Bytes(), nil
}

func isScraped(r *muster.Registration) bool {
	said, is := r.Annotations[annotationScrape]
	if r.Port == nil {
		return false
	}
	if r.Service == "prometheus" || r.Protocol == "prometheus" {
		return !is || said == "true"
	}
	return said == "true"
}

// labelsOf gives a target its labels: what says where it belongs comes last, so that no annotation can
// say otherwise.
func labelsOf(t Target) map[string]string {
	labels := make(map[string]string, len(t.Annotations)+3)
	for k, v := range t.Annotations {
		switch {
		case v == "":
		case k == annotationPath:
			labels["__metrics_path__"] = v
		case k == annotationScheme:
			labels["__scheme__"] = v
		case prometheusLabel.MatchString(k) && !strings.HasPrefix(k, "__") && k != labelHealth:
			labels[k] = v
		}
	}
	labels["cluster"], labels["service"], labels["protocol"] = t.Cluster, t.Service, t.Protocol
	if t.Health != "" {
		labels[labelHealth] = t.Health
	}
	return labels
}
