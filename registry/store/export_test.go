package store

import (
	"errors"
	"io/fs"
	"strconv"
)

// WithMigrations returns o with other migrations than the embedded ones.
func (o Options) WithMigrations(migrations fs.FS) Options {
	o.migrations = migrations
	return o
}

// Migrations are the embedded ones.
func Migrations() fs.FS { return embedded() }

// LimitPages makes the disk full at that many pages, of 4 KiB; 0 ends it.
func (s *Store) LimitPages(n int) error {
	if n == 0 {
		n = 1 << 30
	}
	return s.writer.Exec("PRAGMA max_page_count = " + strconv.Itoa(n)).Error
}

// Pragmas returns the settings of the writer's and of a reader's connection.
func (s *Store) Pragmas(names ...string) (writer, reader map[string]string, err error) {
	writer, reader = map[string]string{}, map[string]string{}
	for _, name := range names {
		var w, r string
		err = errors.Join(err, s.writer.Raw("PRAGMA "+name).Scan(&w).Error, s.history.Raw("PRAGMA "+name).Scan(&r).Error)
		writer[name], reader[name] = w, r
	}
	return writer, reader, err
}
