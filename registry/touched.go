package registry

// touched is what a batch made of the rows of one table: the final state of each
// key, or that it is gone. The zero value is ready.
type touched[K comparable, R any] struct {
	kept    map[K]R
	dropped map[K]bool
}

func (t *touched[K, R]) put(key K, row R) {
	if t.kept == nil {
		t.kept = map[K]R{}
	}
	t.kept[key] = row
	delete(t.dropped, key)
}

func (t *touched[K, R]) drop(key K) {
	if t.dropped == nil {
		t.dropped = map[K]bool{}
	}
	delete(t.kept, key)
	t.dropped[key] = true
}

// rows are those to write.
func (t *touched[K, R]) rows() []R {
	out := make([]R, 0, len(t.kept))
	for _, row := range t.kept {
		out = append(out, row)
	}
	return out
}

// gone are the keys of those to delete.
func (t *touched[K, R]) gone() []K {
	out := make([]K, 0, len(t.dropped))
	for key := range t.dropped {
		out = append(out, key)
	}
	return out
}
