package store

import (
	"context"
	"database/sql/driver"

	"gorm.io/gorm"
)

// tx runs do in one transaction of the writer.
func (s *Store) tx(ctx context.Context, do func(*gorm.DB) error) error {
	tx := s.writer.WithContext(ctx).Begin()
	if tx.Error != nil {
		return tx.Error
	}
	defer tx.Rollback() // of nothing, once it is committed
	if err := do(tx); err != nil {
		return err
	}
	if err := tx.Commit().Error; err != nil {
		s.discard(ctx)
		return err
	}
	return nil
}

// discard closes the writer's connection: after a failed COMMIT it could still be
// inside the transaction. The next use opens another.
func (s *Store) discard(ctx context.Context) {
	pool, err := s.writer.DB()
	if err != nil {
		return
	}
	conn, err := pool.Conn(context.WithoutCancel(ctx))
	if err != nil {
		return // it has none
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}
