package render

import (
	"slices"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// Answer is what is registered, of one moment.
type Answer struct {
	Entries  []*muster.Entry // in the order of muster.CompareEntries
	Complete bool            // what others registered is known up to AsOf
	AsOf     time.Time
}

// AnswerOf returns what a lookup answered.
func AnswerOf(found *client.Entries) *Answer {
	a := &Answer{Complete: found.Complete, AsOf: found.AsOf, Entries: make([]*muster.Entry, 0, len(found.Entries))}
	for _, e := range found.Entries {
		a.Entries = append(a.Entries, entryOf(e))
	}
	slices.SortFunc(a.Entries, muster.CompareEntries)
	return a
}

// Select returns the entries that a filter selects, an empty field or * being any.
func (a *Answer) Select(f muster.RegistrationFilter) ([]*muster.Entry, error) {
	if err := f.Normalise(); err != nil {
		return nil, err
	}
	var found []*muster.Entry
	for _, e := range a.Entries {
		if f.Matches(&e.Registration) {
			found = append(found, e)
		}
	}
	return found, nil
}
