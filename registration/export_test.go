package registration

// Stop takes the server away as a crash would, until Heal.
func (e *Embedded) Stop() {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	e.halt()
}

// GiveUp has the server's JetStream give up, as it does on a full disk.
func (e *Embedded) GiveUp() error {
	return e.running().DisableJetStream()
}

// SyncsAlways tells whether the server has each message on its disk before it acknowledges it.
func (e *Embedded) SyncsAlways() bool { return e.running().JetStreamConfig().SyncAlways }

// Parts are those of a feed.
func (f *Feed) Parts() (*Embedded, *Conn, *Stream) { return f.embedded, f.conn, f.stream }

// Both is the follower of a feed's mirror.
func Both(k *Keeper, f Follower) Follower { return both{k, f} }

// Join has a keeper compare itself with a mirror, as in a feed.
func Join(m *Mirror, k *Keeper) { m.keeper = k }
