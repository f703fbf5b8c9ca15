package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/mattn/go-sqlite3"
	"gorm.io/driver/sqlite"

	"github.com/muster-cloud/muster"
)

// applicationID marks a database as muster's: "mstr".
const applicationID = 0x6d737472

// magic is how every SQLite database begins.
const magic = "SQLite format 3\x00"

// walSuffix is what the write-ahead log's name adds to the database's.
const walSuffix = "-wal"

// inspect looks at the database without the right to write to it, so that one
// which is refused stays as it is. A missing one is fine.
func (s *Store) inspect(ctx context.Context, known int64) error {
	empty, err := s.begins()
	if empty || err != nil {
		return err
	}
	db, err := sql.Open(sqlite.DriverName, s.inspectDSN())
	if err != nil {
		return fmt.Errorf("open %s: %w", s.path(), err)
	}
	found, err := look(ctx, db)
	if err := errors.Join(err, db.Close()); err != nil {
		return s.unusable(err)
	}
	switch {
	case found.tables == 0:
		return nil
	case found.application != applicationID:
		return muster.Errorf(muster.Conflict,
			"%s is a database of another program: move it away, or give another --data-dir", s.path())
	case found.version > known:
		return muster.Errorf(muster.Conflict,
			"%s has schema version %d and this muster knows versions up to %d: upgrade muster, or give another --data-dir",
			s.path(), found.version, known)
	case found.damage != "ok":
		lines := strings.Split(strings.TrimSpace(found.damage), "\n")
		return s.damaged(errors.New(lines[len(lines)-1])) // the first one names the schema
	}
	return nil
}

// begins reports whether there is no database yet, and refuses a file that
// cannot be one.
func (s *Store) begins() (empty bool, err error) {
	f, err := os.OpenFile(s.path(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, s.noOrphan()
	}
	if err != nil {
		return false, muster.Errorf(muster.Invalid,
			"the database cannot be used: %w; it has to be a file that this user can read and write", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head := make([]byte, len(magic))
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) {
		return true, s.noOrphan()
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, s.damaged(err)
	}
	if !bytes.Equal(head[:n], []byte(magic)) {
		return false, s.damaged(errors.New("it does not begin like a database"))
	}
	return false, nil
}

// noOrphan refuses to start anew beside a write-ahead log: SQLite would delete
// it, and it holds commits.
func (s *Store) noOrphan() error {
	if !s.hasWAL() {
		return nil
	}
	wal := s.path() + walSuffix
	return muster.Errorf(muster.Conflict,
		"%s is there without its database %s: put the database back beside it, or move it away to start with an empty registry",
		wal, s.path())
}

// hasWAL reports whether there is a write-ahead log with something in it.
func (s *Store) hasWAL() bool {
	info, err := os.Stat(s.path() + walSuffix)
	return err == nil && info.Size() > 0
}

type finding struct {
	tables      int
	application int64
	version     int64
	damage      string // "ok" when there is none
}

func look(ctx context.Context, db *sql.DB) (finding, error) {
	var f finding
	row := db.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(name = 'goose_db_version'), 0) FROM sqlite_master")
	var versioned int
	if err := row.Scan(&f.tables, &versioned); err != nil {
		return f, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&f.application); err != nil {
		return f, err
	}
	if err := db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&f.damage); err != nil {
		return f, err
	}
	if versioned == 0 {
		return f, nil
	}
	row = db.QueryRowContext(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied")
	return f, row.Scan(&f.version)
}

func (s *Store) damaged(err error) error {
	return muster.Errorf(muster.Conflict,
		"%s is damaged or not a database: %w; restore a backup, or move it away to start with an empty registry", s.path(), err)
}

// unusable says what to do about a database that cannot be opened.
func (s *Store) unusable(err error) error {
	if _, ok := errors.AsType[*muster.Error](err); ok {
		return err
	}
	cause, _ := errors.AsType[sqlite3.Error](err)
	switch cause.Code {
	case sqlite3.ErrNotADB, sqlite3.ErrCorrupt:
		return s.damaged(err)
	case sqlite3.ErrReadonly, sqlite3.ErrPerm, sqlite3.ErrCantOpen:
		return muster.Errorf(muster.Invalid, "%s cannot be written: %w; let this user write to it", s.path(), err)
	}
	return s.refused("open "+s.path(), err)
}
