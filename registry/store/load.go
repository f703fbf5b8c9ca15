package store

import (
	"context"
	"errors"
	"fmt"

	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// Load reads everything but the log, as of one commit.
func (s *Store) Load(ctx context.Context) (*muster.State, error) {
	state := &muster.State{Sequences: map[string]int64{}}
	err := s.view(ctx, func(tx *gorm.DB) error {
		var c counter
		var sequences []*sequence
		err := errors.Join(
			tx.Take(&c).Error,
			tx.Find(&sequences).Error,
			tx.Find(&state.Nodes).Error,
			tx.Find(&state.Instances).Error,
			tx.Find(&state.Conditions).Error,
			tx.Find(&state.Images).Error,
			tx.Find(&state.Services).Error,
			tx.Find(&state.Entries).Error,
			tx.Find(&state.Keys).Error,
			tx.Find(&state.Tokens).Error,
			tx.Find(&state.Requests).Error,
		)
		state.ClusterUID, state.Epoch, state.Term = c.ClusterUID, c.Epoch, c.Term
		state.Head, state.Floor = c.head(), c.floor()
		for _, q := range sequences {
			state.Sequences[q.Name] = q.Value
		}
		return err
	})
	if err != nil {
		return nil, s.refused("load", err)
	}
	if found := (identity{state.Epoch, state.Term}); found != s.self {
		return nil, muster.Errorf(muster.Conflict,
			"another server took over the data directory %s (term %d, this one's is %d): stop one of them",
			s.o.Dir, found.term, s.self.term)
	}
	return state, nil
}

// view runs do in one read transaction: all that it reads is of one commit.
func (s *Store) view(ctx context.Context, do func(*gorm.DB) error) error {
	tx := s.history.WithContext(ctx).Begin()
	if tx.Error != nil {
		return fmt.Errorf("read: %w", tx.Error)
	}
	defer tx.Rollback()
	return do(tx)
}
