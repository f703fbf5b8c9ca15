package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/pressly/goose/v3"
)

//go:embed migrations
var migrations embed.FS

func embedded() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the name is a constant
	}
	return sub
}

// newest returns the highest version among the migrations.
func newest(migrations fs.FS) (int64, error) {
	names, err := fs.Glob(migrations, "*.sql")
	if err != nil {
		return 0, fmt.Errorf("list the migrations: %w", err)
	}
	var version int64
	for _, name := range names {
		v, err := goose.NumericComponent(name)
		if err != nil {
			return 0, fmt.Errorf("migration %s: %w", name, err)
		}
		version = max(version, v)
	}
	return version, nil
}

// migrate brings the schema up to date, a transaction a migration. A database
// that has something in it is copied first, to muster.db.before-vN, where N is
// the first version that it lacked.
func (s *Store) migrate(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id = %d", applicationID)); err != nil {
		return fmt.Errorf("mark the database: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, s.o.migrations,
		goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	for first := true; ; first = false {
		version, target, err := provider.GetVersions(ctx)
		if err != nil {
			return fmt.Errorf("read the schema's version: %w", err)
		}
		if version >= target {
			return nil
		}
		if first && version > 0 {
			if err := s.copyBefore(ctx, db, version+1); err != nil {
				return err
			}
		}
		result, err := provider.UpByOne(ctx)
		if err != nil {
			return fmt.Errorf("migrate the schema from version %d: %w", version, err)
		}
		s.o.Logger.Info("migrated the database", "version", result.Source.Version, "took", result.Duration)
	}
}

// copyBefore writes a copy under a passing name and renames it, so that what has
// the final name is whole.
func (s *Store) copyBefore(ctx context.Context, db *sql.DB, version int64) error {
	name := fmt.Sprintf("%s.before-v%d", s.path(), version)
	passing := name + ".part"
	if err := copyTo(ctx, db, passing); err != nil {
		return fmt.Errorf("copy the database to %s before its migration: %w", name, errors.Join(err, os.Remove(passing)))
	}
	if err := os.Rename(passing, name); err != nil {
		return fmt.Errorf("copy the database before its migration: %w", err)
	}
	return syncFile(s.o.Dir)
}

// copyTo makes the file first, for SQLite would let others read it.
func copyTo(ctx context.Context, db *sql.DB, name string) error {
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "VACUUM INTO ?", name); err != nil {
		return err
	}
	return syncFile(name)
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
