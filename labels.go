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

// Clone returns a copy that can be changed.
func (m Map) Clone() Map { return maps.Clone(m) }
