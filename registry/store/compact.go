package store

import (
	"cmp"
	"context"
	"database/sql"
	"time"

	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// The defaults of muster.Retention.
const (
	defaultKeep      = 100_000
	defaultMaxAge    = 72 * time.Hour
	defaultBatchRows = 500
)

func retention(r muster.Retention) muster.Retention {
	r.Keep = cmp.Or(r.Keep, defaultKeep)
	r.MaxAge = cmp.Or(r.MaxAge, defaultMaxAge)
	if r.Now.IsZero() {
		r.Now = time.Now()
	}
	if r.BatchRows <= 0 {
		r.BatchRows = defaultBatchRows
	}
	return r
}

// Compact raises the floor to what r asks for and then deletes what is below it,
// but for the newest change of each live object. It does so in small transactions
// between which others may write, and goes on where one that was cut short left
// off. It returns the floor and how many changes it deleted, also with an error.
func (s *Store) Compact(ctx context.Context, r muster.Retention) (floor muster.Position, deleted int64, err error) {
	r = retention(r)
	c, err := s.raiseFloor(ctx, r)
	if err != nil {
		return c.floor(), 0, s.refused("compact the log", err)
	}
	for c.Swept < c.Floor {
		n, err := s.sweep(ctx, &c, r.BatchRows)
		if err != nil {
			return c.floor(), deleted, s.refused("compact the log", err)
		}
		deleted += n
	}
	return c.floor(), deleted, nil
}

// raiseFloor commits the floor before any row goes, so that nobody who checks it
// can miss one.
func (s *Store) raiseFloor(ctx context.Context, r muster.Retention) (counter, error) {
	var c counter
	var before int64
	err := s.view(ctx, func(tx *gorm.DB) error {
		if err := tx.Take(&c).Error; err != nil {
			return err
		}
		before = c.Floor
		target, err := target(tx, c, r)
		if err != nil || target <= c.Floor {
			return err
		}
		// Revisions may have holes: the floor is one that was.
		return tx.Raw(`
			SELECT revision AS floor, batch AS floor_batch FROM changes
			WHERE revision <= ? ORDER BY revision DESC LIMIT 1`, target).Scan(&c).Error
	})
	if err != nil || c.Floor == before {
		return c, err
	}
	if r.Raise != nil {
		r.Raise(c.floor())
	}
	return c, s.tx(ctx, func(tx *gorm.DB) error {
		return tx.Exec("UPDATE counter SET floor = ?, floor_batch = ? WHERE floor < ?", c.Floor, c.FloorBatch, c.Floor).Error
	})
}

// target returns where the floor should be: at the newest change that either
// limit gives up.
func target(tx *gorm.DB, c counter, r muster.Retention) (int64, error) {
	floor := c.Floor
	if r.Keep > 0 {
		floor = max(floor, c.Revision-int64(r.Keep))
	}
	if r.MaxAge < 0 {
		return floor, nil
	}
	// `at` never decreases, so the first young enough ends the old ones.
	var young sql.NullInt64
	err := tx.Raw("SELECT revision FROM changes WHERE revision > ? AND at >= ? ORDER BY revision LIMIT 1",
		floor, r.Now.Add(-r.MaxAge).UTC()).Scan(&young).Error
	if err != nil {
		return 0, err
	}
	if !young.Valid {
		return c.Revision, nil
	}
	return max(floor, young.Int64-1), nil
}

// sweep compacts the next rows of the log below the floor. Each transaction leaves
// the log as if the floor had ended there.
func (s *Store) sweep(ctx context.Context, c *counter, rows int) (deleted int64, err error) {
	if err := s.o.Fault(BeforeSweep); err != nil {
		return 0, err
	}
	err = s.tx(ctx, func(tx *gorm.DB) error {
		var end sql.NullInt64
		err := tx.Raw(`
			SELECT max(revision) FROM (
				SELECT revision FROM changes WHERE revision > ? AND revision <= ? ORDER BY revision LIMIT ?)`,
			c.Swept, c.Floor, rows).Scan(&end).Error
		if err != nil {
			return err
		}
		if !end.Valid {
			end.Int64 = c.Floor
		}
		gone := tx.Exec(`
			DELETE FROM changes WHERE revision IN (
				SELECT revision FROM (
					SELECT revision, deleted, lead(revision) OVER (PARTITION BY object_id ORDER BY revision) AS newer
					FROM changes
					WHERE revision <= @end AND object_id IN (
						SELECT object_id FROM changes WHERE revision > @swept AND revision <= @end))
				WHERE deleted OR newer IS NOT NULL)`,
			sql.Named("swept", c.Swept), sql.Named("end", end.Int64))
		if gone.Error != nil {
			return gone.Error
		}
		deleted, c.Swept = gone.RowsAffected, end.Int64
		return tx.Exec("UPDATE counter SET swept = ?", c.Swept).Error
	})
	return deleted, err
}
