package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// Commit writes a batch in one transaction. It returns
//   - nil: it is durable;
//   - an error that wraps muster.ErrOutcomeUnknown: load again before anything
//     else, for what memory holds may not be what the database holds;
//   - a *muster.Error UNAVAILABLE: nothing was written, for a reason that may pass;
//   - any other error: nothing was written because of what is in the batch.
//
// A change without Object is encoded. b itself is not changed.
func (s *Store) Commit(ctx context.Context, b *muster.Batch) error {
	changes, err := encode(b)
	if err != nil {
		return err
	}
	tx := s.writer.WithContext(ctx).Begin()
	if tx.Error != nil {
		return s.refused("commit", tx.Error)
	}
	defer tx.Rollback() // of nothing, once it is committed
	if err := s.write(tx, b, changes); err != nil {
		if errors.Is(err, muster.ErrOutcomeUnknown) {
			return err
		}
		return s.refused("commit", err)
	}
	if err := s.finish(tx); err != nil {
		tx.Rollback()
		s.discard(ctx)
		return s.settle(ctx, b, err)
	}
	return nil
}

func (s *Store) write(tx *gorm.DB, b *muster.Batch, changes []*muster.Change) error {
	if err := s.o.Fault(BeforeWrite); err != nil {
		return err
	}
	if err := advance(tx, b); err != nil {
		return err
	}
	if err := writeBatch(tx, b, changes); err != nil {
		return err
	}
	return s.o.Fault(BeforeCommit)
}

func (s *Store) finish(tx *gorm.DB) error {
	if err := s.o.Fault(DuringCommit); err != nil {
		return err
	}
	if err := tx.Commit().Error; err != nil {
		return err
	}
	return s.o.Fault(AfterCommit)
}

// advance moves the counter, and finds out whether memory and disk still agree.
func advance(tx *gorm.DB, b *muster.Batch) error {
	moved := tx.Exec(`
		UPDATE counter
		SET revision = @to, tag = @tag, batch = CASE WHEN @to > @from THEN @tag ELSE batch END
		WHERE revision = @from AND epoch = @epoch AND term = @term`,
		sql.Named("from", b.From), sql.Named("to", b.To), sql.Named("tag", b.Tag),
		sql.Named("epoch", b.Epoch), sql.Named("term", b.Term))
	if moved.Error != nil {
		return moved.Error
	}
	if moved.RowsAffected != 1 {
		return fmt.Errorf("commit of revision %d: the database is not at revision %d of epoch %s and term %d: %w",
			b.To, b.From, b.Epoch, b.Term, muster.ErrOutcomeUnknown)
	}
	return nil
}

// settle finds out what became of a batch whose COMMIT failed, by a connection
// that has no part in it. A caller who gave up still has to be told the truth,
// so it has a time of its own.
func (s *Store) settle(ctx context.Context, b *muster.Batch, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.o.BusyTimeout+time.Second)
	defer cancel()
	c, err := s.ask(ctx)
	if err != nil {
		return fmt.Errorf("commit of revision %d failed (%w) and the counter cannot be read (%w): %w",
			b.To, cause, err, muster.ErrOutcomeUnknown)
	}
	ours := c.identity() == identity{b.Epoch, b.Term}
	switch {
	case ours && c.Tag == b.Tag && c.Revision == b.To:
		return nil
	case ours && c.Revision == b.From:
		return s.failedCommit(cause)
	}
	return fmt.Errorf("commit of revision %d failed (%w) and the database is at revision %d of epoch %s and term %d: %w",
		b.To, cause, c.Revision, c.Epoch, c.Term, muster.ErrOutcomeUnknown)
}

func (s *Store) failedCommit(cause error) error {
	err := s.refused("commit", cause)
	if muster.CodeOf(err) == muster.Unavailable {
		return err
	}
	return muster.Errorf(muster.Unavailable, "commit: the database did not take it; try again: %w", cause)
}

// ask reads the counter on a new connection.
func (s *Store) ask(ctx context.Context) (c counter, err error) {
	if err := s.o.Fault(Verify); err != nil {
		return c, err
	}
	db, err := sql.Open(sqlite.DriverName, s.historyDSN())
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	row := db.QueryRowContext(ctx, "SELECT epoch, term, revision, tag FROM counter")
	return c, row.Scan(&c.Epoch, &c.Term, &c.Revision, &c.Tag)
}
