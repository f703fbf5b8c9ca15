package store

import (
	"net/url"
	"strconv"
)

// writerDSN is everything that a connection which writes has to be. Statements
// are kept prepared by the driver: inside transactions GORM prepares anew.
func (s *Store) writerDSN() string {
	return s.dsn(url.Values{
		"mode":             {"rwc"},
		"_txlock":          {"immediate"},
		"_journal_mode":    {"WAL"},
		"_synchronous":     {"FULL"},
		"_foreign_keys":    {"on"},
		"_stmt_cache_size": {"128"},
	})
}

func (s *Store) historyDSN() string {
	return s.dsn(url.Values{
		"mode":             {"ro"},
		"_txlock":          {"deferred"},
		"_query_only":      {"on"},
		"_stmt_cache_size": {"16"},
	})
}

// inspectDSN leaves no file behind: without a write-ahead log the database is all
// there is, and as nobody else has the directory it does not change either.
func (s *Store) inspectDSN() string {
	params := url.Values{"mode": {"ro"}, "_query_only": {"on"}}
	if !s.hasWAL() {
		params.Set("immutable", "1")
	}
	return s.dsn(params)
}

func (s *Store) dsn(params url.Values) string {
	params.Set("_busy_timeout", strconv.FormatInt(s.o.BusyTimeout.Milliseconds(), 10))
	u := url.URL{Scheme: "file", Path: s.path(), RawQuery: params.Encode(), OmitHost: true}
	return u.String()
}
