package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
)

// row is a change as the database has it.
type row struct {
	revision, previousRevision                                      int64
	batch, kind, object, previousStatus, status, reason, actor, raw string
	deleted                                                         bool

	own    facts // of raw
	before *row  // of the same object; nil: it was new
}

// facts are what streams are filtered by, and what events have to show.
type facts struct {
	ID          string            `json:"id"`
	NodeUID     string            `json:"nodeUid"`
	Status      string            `json:"status"`
	Labels      map[string]string `json:"labels"`
	Schedulable bool              `json:"schedulable"`
	Generation  int64             `json:"generation"`
	Revision    int64             `json:"revision"`
}

// oracle is the change table, read by SQL before compaction can remove a row.
type oracle struct {
	t     *testing.T
	db    *sql.DB
	epoch string

	reading sync.Mutex // one read at a time

	mu      sync.Mutex
	rows    []*row // that of revision r at r-1
	newest  map[string]*row
	floors  []int64
	changed chan struct{}
}

// newOracle reads the database of a server, which need not be alive: each read
// opens the file anew, so that a server that starts finds it as a crash left it.
func newOracle(t *testing.T, dir, epoch string) *oracle {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "muster.db")+"?mode=ro&_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(0)
	t.Cleanup(func() { db.Close() })
	return &oracle{t: t, db: db, epoch: epoch, newest: map[string]*row{}, changed: make(chan struct{})}
}

// run reads until ctx ends. A file that cannot be read for a moment, as its server
// is being killed, is read the next time.
func (o *oracle) run(ctx context.Context) {
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
			_ = o.read(ctx)
		}
	}
}

const oracleQuery = `SELECT revision, previous_revision, batch, kind, object_id, previous_status, status, reason, actor, object, deleted
	FROM changes WHERE revision > ? ORDER BY revision`

// read takes what is new, and notes the floor.
func (o *oracle) read(ctx context.Context) error {
	o.reading.Lock()
	defer o.reading.Unlock()
	floor, err := o.floor(ctx)
	if err != nil {
		return err
	}
	rows, err := o.db.QueryContext(ctx, oracleQuery, o.head())
	if err != nil {
		return err
	}
	defer rows.Close()
	var found []*row
	for rows.Next() {
		r := &row{}
		if err := rows.Scan(&r.revision, &r.previousRevision, &r.batch, &r.kind, &r.object, &r.previousStatus, &r.status, &r.reason, &r.actor, &r.raw, &r.deleted); err != nil {
			return err
		}
		found = append(found, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	o.take(found, floor)
	return nil
}

// take adds rows, each of which has to follow the one before it.
func (o *oracle) take(found []*row, floor int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range found {
		r.before = o.newest[r.object]
		switch {
		case r.revision != int64(len(o.rows)+1):
			o.t.Errorf("the change table has %d where %d belongs", r.revision, len(o.rows)+1)
		case r.before == nil && (r.previousRevision != 0 || r.previousStatus != ""):
			o.t.Errorf("change %d of %s, which is new, tells of what was before", r.revision, r.object)
		case r.before != nil && (r.previousRevision != r.before.revision || r.previousStatus != r.before.status):
			o.t.Errorf("change %d of %s tells of revision %d, and before it is %d", r.revision, r.object, r.previousRevision, r.before.revision)
		}
		if err := json.Unmarshal([]byte(r.raw), &r.own); err != nil {
			o.t.Errorf("change %d: %v", r.revision, err)
		}
		if r.kind == "CLUSTER" {
			r.own = facts{} // the API shows none of them
		}
		o.rows = append(o.rows, r)
		o.newest[r.object] = r
		if r.deleted {
			delete(o.newest, r.object)
		}
	}
	if n := len(o.floors); floor > 0 && (n == 0 || o.floors[n-1] != floor) {
		o.floors = append(o.floors, floor)
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *oracle) floor(ctx context.Context) (floor int64, err error) {
	return floor, o.db.QueryRowContext(ctx, "SELECT floor FROM counter").Scan(&floor)
}

func (o *oracle) head() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return int64(len(o.rows))
}

// reach waits until the oracle has read up to a revision.
func (o *oracle) reach(ctx context.Context, revision int64) {
	o.wait(ctx, func() bool { return int64(len(o.rows)) >= revision })
}

// compacted waits until the floor is above a revision.
func (o *oracle) compacted(ctx context.Context, revision int64) {
	o.wait(ctx, func() bool { return len(o.floors) > 0 && o.floors[len(o.floors)-1] > revision })
}

// wait asks at each read whether something holds.
func (o *oracle) wait(ctx context.Context, holdsLocked func() bool) {
	for {
		o.mu.Lock()
		done, changed := holdsLocked(), o.changed
		o.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// quiet reports whether the newest change is the last one: nothing is left that
// the server ends by itself after a while.
func (o *oracle) quiet() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.newest {
		if r.own.Status == "TERMINATED" {
			return false
		}
	}
	return true
}

// all returns the rows up to now, and how often the log was compacted.
func (o *oracle) all() (rows []*row, compactions int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.rows), len(o.floors)
}

// cursor is that of a row.
func (o *oracle) cursor(r *row) string {
	return muster.Cursor{Epoch: o.epoch, Position: muster.Position{Revision: r.revision, Tag: r.batch}}.String()
}

// line is what an event of a change has to say.
func (o *oracle) line(r *row, left bool) string {
	return fmt.Sprintf("%d %s %s %s>%s left=%t %q by %s, of %d, generation %d, schedulable %t, resume %s", r.revision, r.kind, r.object,
		r.previousStatus, r.status, left, r.reason, r.actor, r.own.Revision, r.own.Generation, r.own.Schedulable, o.cursor(r))
}
