package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"

	"github.com/muster-cloud/muster"
)

// refused says that nothing of what was asked for happened. A cause that is
// nobody's fault and may pass is UNAVAILABLE; anything else, such as a
// constraint, is the fault of what was written and comes back as it is.
func (s *Store) refused(what string, err error) error {
	why := s.transient(err)
	if why == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return muster.Errorf(muster.Unavailable, "%s: %s: %w", what, why, err)
}

// transient returns what is the matter and what to do, or "" when err is not of
// that kind.
func (s *Store) transient(err error) string {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return "the database took too long; try again"
	}
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) || s.closed.Load() {
		return "the database is closed; try again when the server is back"
	}
	cause, ok := errors.AsType[sqlite3.Error](err)
	if !ok {
		return ""
	}
	switch cause.Code {
	case sqlite3.ErrFull:
		return "the disk of " + s.o.Dir + " is full; free some space there and try again"
	case sqlite3.ErrBusy, sqlite3.ErrLocked, sqlite3.ErrProtocol:
		return "another process holds the database " + s.path() + "; end it and try again"
	case sqlite3.ErrCorrupt, sqlite3.ErrNotADB:
		return "the database " + s.path() + " is damaged; stop the server and restore a backup"
	case sqlite3.ErrReadonly, sqlite3.ErrPerm, sqlite3.ErrCantOpen:
		return "the database " + s.path() + " cannot be written; let the server write to it and try again"
	case sqlite3.ErrIoErr:
		return "the disk of " + s.o.Dir + " fails; see the kernel's log, and try again"
	case sqlite3.ErrNomem, sqlite3.ErrInterrupt, sqlite3.ErrAbort, sqlite3.ErrSchema:
		return "the database was interrupted; try again"
	}
	return ""
}
