package transport

import "sync/atomic"

// Stats are the counters of a Handler since it was made, and gauges.
type Stats struct {
	Operations int64 // queries and mutations executed
	Executions int64 // events of subscriptions executed, each for all who share it
	Deliveries int64 // events written to clients
	FromCache  int64 // deliveries whose payload another one had made
	FromRing   int64 // changes executed that the hub had in memory
	FromLog    int64 // changes executed that were read from the log
	Refused    int64 // requests, operations and connections refused by a limit
	Stalled    int64 // connections closed because the client stopped reading
	Internal   int64 // errors that were answered with INTERNAL

	Connections int64 // open now
	Streams     int64 // subscriptions live now
	Groups      int64 // shared executions that serve them now
	LargeBodies int64 // requests above the usual limit that are read or executed now
}

type counters struct {
	operations, executions, deliveries, fromCache, fromRing, fromLog atomic.Int64
	refused, stalled, internal                                       atomic.Int64
	streams                                                          atomic.Int64
}

// Stats returns the counters.
func (h *Handler) Stats() Stats {
	h.mu.Lock()
	connections := h.open
	h.mu.Unlock()
	return Stats{
		Operations:  h.count.operations.Load(),
		Executions:  h.count.executions.Load(),
		Deliveries:  h.count.deliveries.Load(),
		FromCache:   h.count.fromCache.Load(),
		FromRing:    h.count.fromRing.Load(),
		FromLog:     h.count.fromLog.Load(),
		Refused:     h.count.refused.Load(),
		Stalled:     h.count.stalled.Load(),
		Internal:    h.count.internal.Load(),
		Connections: int64(connections),
		Streams:     h.count.streams.Load(),
		Groups:      int64(h.groups.count()),
		LargeBodies: int64(len(h.bodies)),
	}
}
