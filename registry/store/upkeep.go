package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mattn/go-sqlite3"
	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// SaveLastSeen writes when nodes were last seen, by one statement in one
// transaction. It makes no revision. Nodes that are not there are left out.
func (s *Store) SaveLastSeen(ctx context.Context, seen map[muster.NodeUID]time.Time) error {
	if len(seen) == 0 {
		return nil
	}
	texts := make(map[muster.NodeUID]string, len(seen))
	for uid, at := range seen {
		texts[uid] = at.UTC().Format(sqlite3.SQLiteTimestampFormats[0])
	}
	list, err := json.Marshal(texts)
	if err != nil {
		return s.refused("save when nodes were last seen", err)
	}
	err = s.tx(ctx, func(tx *gorm.DB) error {
		return tx.Exec("UPDATE nodes SET last_seen = seen.value FROM json_each(?) AS seen WHERE uid = seen.key",
			string(list)).Error
	})
	if err != nil {
		return s.refused("save when nodes were last seen", err)
	}
	return nil
}

// forgetRows is how many requests one transaction forgets.
const forgetRows = 500

// ForgetRequests deletes the records of requests that are older than before, in
// small transactions between which others may write.
func (s *Store) ForgetRequests(ctx context.Context, before time.Time) error {
	for {
		var forgotten int64
		err := s.tx(ctx, func(tx *gorm.DB) error {
			gone := tx.Exec(`
				DELETE FROM requests WHERE (principal, request_id) IN (
					SELECT principal, request_id FROM requests WHERE at < ? LIMIT ?)`, before.UTC(), forgetRows)
			forgotten = gone.RowsAffected
			return gone.Error
		})
		if err != nil {
			return s.refused("forget old requests", err)
		}
		if forgotten < forgetRows {
			return nil
		}
	}
}
