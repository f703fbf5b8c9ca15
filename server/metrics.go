package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/transport"
)

// emit takes one number, with the value of the metric's label if it has one.
type emit func(value float64, label ...string)

// metric is a number that some part keeps anyway, read when it is asked for.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	label      string // empty: none
	read       func(emit)
}

// metrics serves the numbers of every part, and those of the process.
func (s *Server) metrics() http.Handler {
	own := prometheus.NewRegistry()
	own.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newCollector(s.metricList()),
	)
	all := promhttp.HandlerFor(own, promhttp.HandlerOpts{Registry: own})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := wholeCluster(muster.PrincipalOf(r.Context())); err != nil {
			refuseCaller(w, err)
			return
		}
		all.ServeHTTP(w, r)
	})
}

// metricList is every metric that is ours.
func (s *Server) metricList() []metric {
	return append(s.ownMetrics(), s.discovery.metrics()...)
}

func (s *Server) ownMetrics() []metric {
	stats, follow, serve := s.registry.Stats, s.hub.Stats, s.transport.Stats
	return []metric{
		counter("muster_registry_commits_total", "Database transactions.", func() int64 { return stats().Commits }),
		counter("muster_registry_mutations_total", "Mutations, refused ones included.", func() int64 { return stats().Calls }),
		counter("muster_registry_splits_total", "Batches that were committed one by one.", func() int64 { return stats().Splits }),
		counter("muster_registry_failures_total", "Commits that the database refused.", func() int64 { return stats().Failures }),
		counter("muster_registry_reloads_total", "Times that memory was loaded again.", func() int64 { return stats().Reloads }),
		counter("muster_registry_reports_ignored_total", "Parts of agents' reports that could not be.", func() int64 { return stats().Ignored }),
		gauge("muster_registry_mutations_waiting", "Mutations that wait for their commit.", func() int64 { return int64(stats().Queued) }),
		gauge("muster_registry_revision", "The newest revision.", func() int64 { return s.registry.ServerInfo().Revision }),
		byStatus("muster_registry_nodes", "Nodes.", func() []*muster.StatusCount { return s.registry.ClusterHealth().Nodes }),
		byStatus("muster_registry_instances", "Instances.", func() []*muster.StatusCount { return s.registry.ClusterHealth().Instances }),
		counter("muster_store_statements_total", "SQL statements.", s.store.Statements),
		counter("muster_watch_published_total", "Changes announced to those who watch.", func() int64 { return follow().Published }),
		counter("muster_watch_log_reads_total", "Reads of the change log for those who catch up.", func() int64 { return follow().LogReads }),
		counter("muster_transport_operations_total", "Queries and mutations executed.", func() int64 { return serve().Operations }),
		counter("muster_transport_executions_total", "Events of subscriptions executed, each for all who share it.", func() int64 { return serve().Executions }),
		counter("muster_transport_deliveries_total", "Events written to clients.", func() int64 { return serve().Deliveries }),
		bySource("muster_transport_served_total", "What was delivered to those who watch, by where it came from.", serve),
		counter("muster_transport_refused_total", "What a limit refused.", func() int64 { return serve().Refused }),
		counter("muster_transport_stalled_total", "Connections closed because the client stopped reading.", func() int64 { return serve().Stalled }),
		counter("muster_transport_internal_total", "Errors that are defects of the server.", func() int64 { return serve().Internal }),
		gauge("muster_transport_connections", "WebSocket connections that are open.", func() int64 { return serve().Connections }),
		gauge("muster_transport_large_bodies", "Requests above the usual limit, such as agents' reports, that are read or executed.", func() int64 { return serve().LargeBodies }),
		gauge("muster_transport_streams", "Subscriptions that are live.", func() int64 { return serve().Streams }),
		counter("muster_server_nudges_total", "Nudges that agents took.", s.agents.sent.Load),
		counter("muster_server_nudges_failed_total", "Nudges that got lost; a beat heals them.", s.agents.failed.Load),
		gauge("muster_server_connections", "Connections that are open.", s.listener.open.Load),
		counter("muster_server_connections_refused_total", "Connections beyond the limit.", s.listener.refused.Load),
	}
}

func counter(name, help string, read func() int64) metric {
	return metric{name: name, help: help, kind: prometheus.CounterValue, read: func(e emit) { e(float64(read())) }}
}

func gauge(name, help string, read func() int64) metric {
	return metric{name: name, help: help, kind: prometheus.GaugeValue, read: func(e emit) { e(float64(read())) }}
}

func byStatus(name, help string, read func() []*muster.StatusCount) metric {
	return metric{name: name, help: help, kind: prometheus.GaugeValue, label: "status", read: func(e emit) {
		for _, c := range read() {
			e(float64(c.Count), c.Status)
		}
	}}
}

// bySource tells changes that were executed, from the ring in memory or from the
// log on disk, from deliveries that another one had already made.
func bySource(name, help string, read func() transport.Stats) metric {
	return metric{name: name, help: help, kind: prometheus.CounterValue, label: "source", read: func(e emit) {
		s := read()
		e(float64(s.FromCache), "cache")
		e(float64(s.FromRing), "ring")
		e(float64(s.FromLog), "log")
	}}
}

// collector reads its metrics at each scrape.
type collector struct {
	metrics []metric
	descs   []*prometheus.Desc
}

func newCollector(metrics []metric) *collector {
	c := &collector{metrics: metrics}
	for _, m := range metrics {
		var labels []string
		if m.label != "" {
			labels = []string{m.label}
		}
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, labels, nil))
	}
	return c
}

// Describe sends what there is.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		out <- desc
	}
}

// Collect sends the numbers as they are.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for i, m := range c.metrics {
		m.read(func(value float64, label ...string) {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, value, label...)
		})
	}
}
