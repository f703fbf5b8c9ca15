package muster

import "maps"

// Map is an object whose values are strings: labels, an environment.
type Map map[string]string

// Matches reports whether m has every entry of want.
func (m Map) Matches(want Map) bool {
	for k, v := range want {
		if got, ok := m[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Edits are changes to labels that outlive a new registration: a value that is
// set, or nil for a label that is removed.
type Edits map[string]*string

// Clone returns a copy that can be changed.
func (e Edits) Clone() Edits { return maps.Clone(e) }

// Edited returns m with the edits made.
func (m Map) Edited(edits Edits) Map {
	out := Map{}
	maps.Copy(out, m)
	for k, v := range edits {
		if v == nil {
			delete(out, k)
		} else {
			out[k] = *v
		}
	}
	return out
}

// Clone returns a copy that can be changed.
func (m Map) Clone() Map { return maps.Clone(m) }
