package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mattn/go-sqlite3"
	"gorm.io/gorm"

	"github.com/muster-cloud/muster"
)

// AuditBefore returns up to limit entries of the audit that the filter selects, newest
// first: those before the entry with the id before, or from the newest when that is 0.
func (s *Store) AuditBefore(ctx context.Context, f *muster.AuditFilter, before int64, limit int) ([]*muster.AuditEntry, error) {
	q := s.history.WithContext(ctx).Order("id DESC").Limit(limit)
	if before > 0 {
		q = q.Where("id < ?", before)
	}
	var entries []*muster.AuditEntry
	if err := filtered(q, f).Find(&entries).Error; err != nil {
		return nil, s.refused("read the audit", err)
	}
	return entries, nil
}

func filtered(q *gorm.DB, f *muster.AuditFilter) *gorm.DB {
	if f == nil {
		return q
	}
	for column, value := range map[string]*string{"key": f.Key, "action": f.Action, "target": f.Target} {
		if value != nil {
			q = q.Where(map[string]any{column: *value})
		}
	}
	if f.Refused != nil && *f.Refused {
		q = q.Where("outcome <> ?", muster.AuditDone)
	} else if f.Refused != nil {
		q = q.Where("outcome = ?", muster.AuditDone)
	}
	if f.Since != nil {
		q = q.Where("at >= ?", f.Since.UTC())
	}
	return q
}

// ForgetAudit deletes the entries that are older than before, in small transactions
// between which others may write.
func (s *Store) ForgetAudit(ctx context.Context, before time.Time) error {
	for {
		var forgotten int64
		err := s.tx(ctx, func(tx *gorm.DB) error {
			gone := tx.Exec("DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < ? LIMIT ?)", before.UTC(), forgetRows)
			forgotten = gone.RowsAffected
			return gone.Error
		})
		if err != nil {
			return s.refused("forget the old audit", err)
		}
		if forgotten < forgetRows {
			return nil
		}
	}
}

// SaveLastUsed writes when keys were last used, by one statement in one transaction.
// It makes no revision. Keys that are not there are left out.
func (s *Store) SaveLastUsed(ctx context.Context, used map[muster.KeyID]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	texts := make(map[muster.KeyID]string, len(used))
	for id, at := range used {
		texts[id] = at.UTC().Format(sqlite3.SQLiteTimestampFormats[0])
	}
	list, err := json.Marshal(texts)
	if err == nil {
		err = s.tx(ctx, func(tx *gorm.DB) error {
			return tx.Exec("UPDATE access_keys SET last_used_at = used.value FROM json_each(?) AS used WHERE access_keys.id = used.key", string(list)).Error
		})
	}
	if err != nil {
		return s.refused("save when keys were last used", err)
	}
	return nil
}
