package store

import (
	"io/fs"
	"log/slog"
	"time"
)

// The defaults of Options.
const (
	defaultBusyTimeout = 5 * time.Second
	defaultReaders     = 4
)

// Options say where the database is; Dir is required.
type Options struct {
	// Dir is the data directory; made when missing.
	Dir string
	// Logger gets one line a migration; default: none.
	Logger *slog.Logger
	// BusyTimeout is how long a write waits for a lock that another process
	// holds; default 5 s.
	BusyTimeout time.Duration
	// Readers is how many reads of the log run at once; default 4.
	Readers int
	// Fault is for tests: an error that it returns at a point happens there.
	// Nil in production.
	Fault func(Point) error

	migrations fs.FS // default: the embedded ones
}

// Point is a place where Options.Fault may strike.
type Point string

// The points: those of a commit in the order in which it passes them, then that of
// a compaction.
const (
	BeforeWrite  Point = "before-write"  // the transaction has begun
	BeforeCommit Point = "before-commit" // all is written
	DuringCommit Point = "during-commit" // COMMIT itself fails, and nothing is committed
	AfterCommit  Point = "after-commit"  // committed, and the answer is lost
	Verify       Point = "verify"        // the counter is about to be read after a failed COMMIT
	BeforeSweep  Point = "before-sweep"  // the next part of the log is about to be compacted; no transaction is open
)

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.BusyTimeout <= 0 {
		o.BusyTimeout = defaultBusyTimeout
	}
	if o.Readers <= 0 {
		o.Readers = defaultReaders
	}
	if o.Fault == nil {
		o.Fault = func(Point) error { return nil }
	}
	if o.migrations == nil {
		o.migrations = embedded()
	}
	return o
}
