package store

import (
	"errors"
	"fmt"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/muster-cloud/muster"
)

// maxRows is how many rows one INSERT has at most: 128 instances are 3,840
// variables, and SQLite takes 32,766.
const maxRows = 128

type sequence struct {
	Name  string `gorm:"column:name;primaryKey"`
	Value int64  `gorm:"column:value"`
}

func (sequence) TableName() string { return "sequences" }

// encode returns copies of the batch's changes as they are to be written.
func encode(b *muster.Batch) ([]*muster.Change, error) {
	changes := make([]*muster.Change, len(b.Changes))
	for i, c := range b.Changes {
		row := *c
		row.At = row.At.UTC()
		if row.Batch == "" {
			row.Batch = b.Tag
		}
		if row.Object == "" {
			row.Node, row.Instance, row.Condition = nodeInUTC(row.Node), instanceInUTC(row.Instance), conditionInUTC(row.Condition)
			row.Image, row.Service, row.Entry = imageInUTC(row.Image), serviceInUTC(row.Service), registeredInUTC(row.Entry)
			row.Key, row.Token = keyInUTC(row.Key), tokenInUTC(row.Token)
			if err := row.Encode(); err != nil {
				return nil, err
			}
		}
		changes[i] = &row
	}
	return changes, nil
}

// writeBatch writes the rows; nodes come before the instances that refer to them.
func writeBatch(tx *gorm.DB, b *muster.Batch, changes []*muster.Change) error {
	if err := upsert(tx, "nodes", mapped(b.Nodes, nodeInUTC)); err != nil {
		return err
	}
	if err := upsert(tx, "instances", mapped(b.Instances, instanceInUTC)); err != nil {
		return err
	}
	if err := upsert(tx, "services", mapped(b.Services, serviceInUTC)); err != nil {
		return err
	}
	if err := remove(tx, "id", &muster.Service{}, b.DeletedServices); err != nil {
		return err
	}
	if err := remove(tx, "id", &muster.Instance{}, b.DeletedInstances); err != nil {
		return err
	}
	if err := remove(tx, "uid", &muster.Node{}, b.DeletedNodes); err != nil {
		return err
	}
	if err := upsert(tx, "conditions", mapped(b.Conditions, conditionInUTC)); err != nil {
		return err
	}
	if err := upsert(tx, "images", mapped(b.Images, imageInUTC)); err != nil {
		return err
	}
	if err := remove(tx, "name", &muster.Image{}, b.DeletedImages); err != nil {
		return err
	}
	if err := writeKeys(tx, b); err != nil {
		return err
	}
	if err := upsert(tx, "requests", mapped(b.Requests, requestInUTC)); err != nil {
		return err
	}
	sequences := make([]*sequence, 0, len(b.Sequences))
	for name, value := range b.Sequences {
		sequences = append(sequences, &sequence{name, value})
	}
	if err := upsert(tx, "sequences", sequences); err != nil {
		return err
	}
	return insert(tx, "changes", changes)
}

// writeKeys writes entries, keys, join tokens and the audit.
func writeKeys(tx *gorm.DB, b *muster.Batch) error {
	return errors.Join(
		upsert(tx, "entries", mapped(b.Entries, registeredInUTC)),
		remove(tx, "key", &muster.Entry{}, b.DeletedEntries),
		upsert(tx, "access keys", mapped(b.Keys, keyInUTC)),
		remove(tx, "id", &muster.AccessKey{}, b.DeletedKeys),
		upsert(tx, "join tokens", mapped(b.Tokens, tokenInUTC)),
		remove(tx, "id", &muster.JoinToken{}, b.DeletedTokens),
		insert(tx, "the audit", mapped(b.Audit, entryInUTC)),
	)
}

// upsert writes whole rows, by their primary key.
func upsert[T any](tx *gorm.DB, what string, rows []*T) error {
	return inChunks(rows, func(chunk []*T) error {
		if err := tx.Clauses(clause.OnConflict{UpdateAll: true}).Create(&chunk).Error; err != nil {
			return fmt.Errorf("write %s: %w", what, err)
		}
		return nil
	})
}

// insert writes rows that are never written twice.
func insert[T any](tx *gorm.DB, what string, rows []*T) error {
	return inChunks(rows, func(chunk []*T) error {
		if err := tx.Create(&chunk).Error; err != nil {
			return fmt.Errorf("write %s: %w", what, err)
		}
		return nil
	})
}

// remove deletes rows by their primary key.
func remove[K ~string](tx *gorm.DB, key string, of schema.Tabler, ids []K) error {
	return inChunks(ids, func(chunk []K) error {
		if err := tx.Where(key+" IN ?", chunk).Delete(of).Error; err != nil {
			return fmt.Errorf("delete from %s: %w", of.TableName(), err)
		}
		return nil
	})
}

// inChunks calls do with parts of rows that are of few different lengths (up to 8,
// and then multiples of 8), so that few different statements are prepared.
func inChunks[T any](rows []T, do func([]T) error) error {
	for len(rows) > 0 {
		n := min(maxRows, len(rows))
		if n > 8 {
			n &^= 7
		}
		if err := do(rows[:n:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}
