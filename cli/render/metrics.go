package render

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics is what became of the files, for the textfile collector of a node exporter.
type metrics struct {
	path     string // empty: nobody wants it
	registry *prometheus.Registry
	renders  *prometheus.CounterVec
	failing  *prometheus.GaugeVec
	entries  *prometheus.GaugeVec
	good     *prometheus.GaugeVec
}

func newMetrics(path string) *metrics {
	m := &metrics{
		path: path, registry: prometheus.NewRegistry(),
		renders: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "muster_render_renders_total", Help: "Renders of a file by what became of them."}, []string{"file", "outcome"}),
		failing: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_render_failing", Help: "Whether a file is not what the feed says it should be."}, []string{"file"}),
		entries: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_render_entries", Help: "How many entries the file in place is from."}, []string{"file"}),
		good:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "muster_render_last_good_timestamp_seconds", Help: "When a file was last found or made what it should be."}, []string{"file"}),
	}
	m.registry.MustRegister(m.renders, m.failing, m.entries, m.good)
	return m
}

// note counts a render.
func (m *metrics) note(o *output, err error) {
	outcome, failing := "unchanged", 0.0
	switch e, ok := errors.AsType[*Error](err); {
	case ok:
		outcome, failing = string(e.Kind), 1
	case err != nil:
		outcome, failing = "failed", 1
	default:
		if o.calls != nil {
			outcome = "written"
		}
		m.good.WithLabelValues(o.Output).SetToCurrentTime()
	}
	m.renders.WithLabelValues(o.Output, outcome).Inc()
	m.failing.WithLabelValues(o.Output).Set(failing)
	m.entries.WithLabelValues(o.Output).Set(float64(o.spot.Entries.total()))
	o.calls = nil
}

func (m *metrics) write() error {
	if m.path == "" {
		return nil
	}
	if err := prometheus.WriteToTextfile(m.path, m.registry); err != nil {
		return cannotWrite(m.path, err)
	}
	return nil
}
