package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// ChangesAfter returns up to limit changes of the log that follow revision after,
// oldest first. After 0 the log is replayed from nothing, with what compaction
// kept; after any other revision below the floor there may be a gap, so that is
// COMPACTED.
func (s *Store) ChangesAfter(ctx context.Context, after int64, limit int) ([]*muster.Change, error) {
	var changes []*muster.Change
	err := s.view(ctx, func(tx *gorm.DB) error {
		var c counter
		if err := tx.Take(&c).Error; err != nil {
			return err
		}
		if after != 0 && after < c.Floor {
			return s.compacted(after, c)
		}
		return tx.Where("revision > ?", after).Order("revision").Limit(limit).Find(&changes).Error
	})
	return s.decoded(changes, err)
}

func (s *Store) compacted(after int64, c counter) error {
	err := muster.Errorf(muster.Compacted,
		"the changes after revision %d are no longer all there, those after %d are: list again", after, c.Floor)
	err.Details = map[string]any{"oldest": muster.Cursor{Epoch: c.Epoch, Position: c.floor()}.String()}
	return err
}

// ChangesOfAfter returns up to limit changes of one object that follow revision
// after, oldest first; below the floor, those that compaction kept.
func (s *Store) ChangesOfAfter(ctx context.Context, objectID string, after int64, limit int) ([]*muster.Change, error) {
	var changes []*muster.Change
	err := s.history.WithContext(ctx).
		Where("object_id = ? AND revision > ?", objectID, after).
		Order("revision").Limit(limit).Find(&changes).Error
	return s.decoded(changes, err)
}

// LastChanges returns the newest n changes of each of the objects, newest first,
// by one statement. An object without changes is not in the map.
func (s *Store) LastChanges(ctx context.Context, objectIDs []string, n int) (map[string][]*muster.Change, error) {
	ids, err := json.Marshal(objectIDs)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	// A window function would read every row of each object; this reads n.
	var changes []*muster.Change
	err = s.history.WithContext(ctx).Raw(`
		SELECT changes.* FROM (SELECT DISTINCT value AS id FROM json_each(?)) AS object
		JOIN changes ON changes.revision IN (
			SELECT revision FROM changes WHERE object_id = object.id ORDER BY revision DESC LIMIT ?)
		ORDER BY changes.revision DESC`, string(ids), n).Scan(&changes).Error
	if _, err := s.decoded(changes, err); err != nil {
		return nil, err
	}
	last := make(map[string][]*muster.Change, len(objectIDs))
	for _, c := range changes {
		last[c.ObjectID] = append(last[c.ObjectID], c)
	}
	return last, nil
}

// PositionAt returns the position of a revision with the tag of the batch that
// wrote it; false when the log has no such revision, or it is below the floor.
func (s *Store) PositionAt(ctx context.Context, revision int64) (muster.Position, bool, error) {
	var found []muster.Position
	err := s.history.WithContext(ctx).Raw(`
		SELECT floor AS revision, floor_batch AS tag FROM counter WHERE floor = @revision
		UNION ALL
		SELECT revision, batch FROM changes WHERE revision = @revision AND revision > (SELECT floor FROM counter)`,
		sql.Named("revision", revision)).Scan(&found).Error
	if err != nil {
		return muster.Position{}, false, s.refused("read the log", err)
	}
	if len(found) == 0 {
		return muster.Position{}, false, nil
	}
	return found[0], true, nil
}

// decoded completes changes that were read.
func (s *Store) decoded(changes []*muster.Change, err error) ([]*muster.Change, error) {
	if muster.CodeOf(err) == muster.Compacted {
		return nil, err
	}
	if err != nil {
		return nil, s.refused("read the log", err)
	}
	for _, c := range changes {
		c.Epoch = s.self.epoch
		if err := c.Decode(); err != nil {
			return nil, err
		}
	}
	return changes, nil
}
