package store

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/muster-cloud/muster"
)

// counter is the one row that says where the database stands.
type counter struct {
	ID         int       `gorm:"column:id;primaryKey;autoIncrement:false"`
	ClusterUID string    `gorm:"column:cluster_uid"`
	Epoch      string    `gorm:"column:epoch"`
	Term       int64     `gorm:"column:term"`
	Revision   int64     `gorm:"column:revision"`
	Batch      string    `gorm:"column:batch"`
	Tag        string    `gorm:"column:tag"`
	Floor      int64     `gorm:"column:floor"`
	FloorBatch string    `gorm:"column:floor_batch"`
	Swept      int64     `gorm:"column:swept"`
	CreatedAt  time.Time `gorm:"column:created_at;autoCreateTime:false"`
}

func (counter) TableName() string { return "counter" }

func (c counter) head() muster.Position { return muster.Position{Revision: c.Revision, Tag: c.Batch} }

func (c counter) floor() muster.Position {
	return muster.Position{Revision: c.Floor, Tag: c.FloorBatch}
}
func (c counter) identity() identity { return identity{c.Epoch, c.Term} }

// identity is whose the database is: a history of it and a leadership over it.
type identity struct {
	epoch string
	term  int64
}

// takeOver gives a new database its identity and raises the term.
func (s *Store) takeOver(ctx context.Context) (identity, error) {
	var c counter
	err := s.tx(ctx, func(tx *gorm.DB) error {
		born := counter{ID: 1, ClusterUID: randomHex(16), Epoch: randomHex(8), CreatedAt: time.Now().UTC()}
		if err := tx.Clauses(clause.OnConflict{DoNothing: true}).Create(&born).Error; err != nil {
			return err
		}
		return tx.Raw("UPDATE counter SET term = term + 1 RETURNING *").Scan(&c).Error
	})
	return c.identity(), err
}

// randomHex returns twice as many hex digits as bytes.
func randomHex(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
