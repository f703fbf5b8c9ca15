package store

import (
	"context"
	"fmt"
)

// RowsChanged returns what SQLite counts as total_changes() of the writer's
// connection: rows inserted, changed and deleted since it was opened. It begins
// again when a failed COMMIT cost the connection.
func (s *Store) RowsChanged(ctx context.Context) (int64, error) {
	var n int64
	if err := s.writer.WithContext(ctx).Raw("SELECT total_changes()").Scan(&n).Error; err != nil {
		return 0, fmt.Errorf("count the rows that were changed: %w", err)
	}
	return n, nil
}
