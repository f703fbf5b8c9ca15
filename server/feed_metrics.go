package server

import "github.com/muster-cloud/muster/registration"

// metrics are those of the discovery feed: of what is ours in it, and of what is read there.
func (d *discovery) metrics() []metric {
	ours := func(pick func(registration.KeeperCounts) int) func() int64 {
		return func() int64 { return int64(pick(d.feed.Counts())) }
	}
	read := func(pick func(registration.MirrorCounts) int) func() int64 {
		return func() int64 { return int64(pick(d.feed.MirrorCounts())) }
	}
	return []metric{
		gauge("muster_registration_up", "Whether the discovery feed can be reached.", func() int64 {
			if d.feed.State().Up {
				return 1
			}
			return 0
		}),
		gauge("muster_registration_entries", "Entries of this cluster that are to be in the feed.", ours(func(c registration.KeeperCounts) int { return c.Entries })),
		gauge("muster_registration_pending", "Entries that are not in the feed as they should be yet.", ours(func(c registration.KeeperCounts) int { return c.Pending })),
		gauge("muster_registration_refused", "Entries that the feed does not take.", ours(func(c registration.KeeperCounts) int { return c.Refused })),
		counter("muster_registration_publishes_total", "Messages with new and changed entries.", ours(func(c registration.KeeperCounts) int { return c.Publishes })),
		counter("muster_registration_refreshes_total", "Messages that refreshed entries.", ours(func(c registration.KeeperCounts) int { return c.Refreshes })),
		counter("muster_registration_markers_total", "Messages that removed entries.", ours(func(c registration.KeeperCounts) int { return c.Markers })),
		counter("muster_registration_failures_total", "Messages that were not acknowledged.", ours(func(c registration.KeeperCounts) int { return c.Failures })),
		counter("muster_registration_disputes_total", "Times that somebody else wrote over an entry of this cluster.", ours(func(c registration.KeeperCounts) int { return c.Disputes })),
		gauge("muster_registration_followed", "Entries in the feed, of whomever.", read(func(c registration.MirrorCounts) int { return c.Entries })),
		counter("muster_registration_bad_messages_total", "Messages in the feed that were no entry.", read(func(c registration.MirrorCounts) int { return c.Bad })),
		counter("muster_registration_beyond_total", "Messages in the feed that were too many to be followed.", read(func(c registration.MirrorCounts) int { return c.Beyond })),
		counter("muster_registration_resyncs_total", "Times that the feed was read from its beginning.", read(func(c registration.MirrorCounts) int { return c.Resyncs })),
	}
}
