package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// FileName is the database's name in the data directory.
const FileName = "muster.db"

// Store is the registry's database. Its methods may be called from several
// goroutines; commits are for one.
type Store struct {
	o       Options
	lock    *os.File
	writer  *gorm.DB // one connection
	history *gorm.DB // read only
	pools   []*sql.DB
	traced  counting
	self    identity

	closing  sync.Once
	closed   atomic.Bool
	closeErr error
}

// Open takes the data directory, makes or migrates the database in it and raises
// the term. Errors that a person can do something about are *muster.Error:
// INVALID when the directory cannot be used, CONFLICT when another server has it
// or the database is not one that this binary can work with.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	if o.Dir != "" {
		dir, err := filepath.Abs(o.Dir)
		if err != nil {
			return nil, fmt.Errorf("find the data directory %s: %w", o.Dir, err)
		}
		o.Dir = dir
	}
	lock, err := claim(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Store{o: o, lock: lock}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) error {
	known, err := newest(s.o.migrations)
	if err != nil {
		return err
	}
	if err := s.inspect(ctx, known); err != nil {
		return err
	}
	if err := s.touch(); err != nil {
		return err
	}
	writer, err := s.connect(s.writerDSN(), 1)
	if err != nil {
		return s.unusable(err)
	}
	if err := s.migrate(ctx, writer); err != nil {
		return s.unusable(err)
	}
	if s.writer, err = s.gorm(writer); err != nil {
		return s.unusable(err)
	}
	// A page that many commits change is written back once. A connection that replaces
	// this one has SQLite's own 1000, which is only slower.
	if err := s.writer.WithContext(ctx).Exec("PRAGMA wal_autocheckpoint=4000").Error; err != nil { // 16 MB
		return s.unusable(err)
	}
	if s.self, err = s.takeOver(ctx); err != nil {
		return s.unusable(err)
	}
	history, err := s.connect(s.historyDSN(), s.o.Readers)
	if err != nil {
		return err
	}
	s.history, err = s.gorm(history)
	return err
}

// touch makes the database's file, for SQLite would let others read it, and it
// has secrets. What SQLite puts beside it gets the same mode.
func (s *Store) touch() error {
	f, err := os.OpenFile(s.path(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return muster.Errorf(muster.Invalid,
			"the database cannot be made: %w; let this user write to its directory, or give another --data-dir", err)
	}
	return f.Close()
}

// Close writes the log ahead back into the database and gives up the data
// directory. It may be called more than once; each call waits for the end.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.closed.Store(true)
		s.closeErr = errors.Join(s.settleDown(), s.release())
	})
	return s.closeErr
}

// settleDown leaves the database in one file. When somebody else is reading it,
// it stays two, which the next start can read as well.
func (s *Store) settleDown() error {
	history, err := s.history.DB()
	if err != nil {
		return err
	}
	return errors.Join(
		history.Close(),
		s.writer.Exec("PRAGMA optimize").Error,
		s.writer.Exec("PRAGMA wal_checkpoint(TRUNCATE)").Error,
	)
}

// release closes all that is open.
func (s *Store) release() error {
	var errs []error
	for _, pool := range s.pools {
		errs = append(errs, pool.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}

// Statements returns how many SQL statements have run since Open began, without
// its migrations and BEGIN and COMMIT.
func (s *Store) Statements() int64 { return s.traced.n.Load() }

func (s *Store) path() string { return filepath.Join(s.o.Dir, FileName) }

// connect opens a pool that Close closes.
func (s *Store) connect(dsn string, connections int) (*sql.DB, error) {
	db, err := sql.Open(sqlite.DriverName, dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s.path(), err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	s.pools = append(s.pools, db)
	return db, nil
}

func (s *Store) gorm(db *sql.DB) (*gorm.DB, error) {
	g, err := gorm.Open(sqlite.New(sqlite.Config{Conn: db}), &gorm.Config{
		SkipDefaultTransaction: true,
		DisableAutomaticPing:   true,
		Logger:                 &s.traced,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", s.path(), err)
	}
	return g.Session(&gorm.Session{SkipHooks: true}), nil
}
