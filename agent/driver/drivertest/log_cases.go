package drivertest

import (
	"errors"
	"testing"

	"github.com/muster-cloud/muster/agent/driver"
)

// logs asserts what holds of a driver that has the ability.
func (s *suite) logs(t *testing.T) {
	d, ok := s.driver.(driver.Logs)
	if !ok {
		return
	}
	read := func(machine string, r driver.LogRead) driver.LogPart {
		t.Helper()
		part, err := d.ReadLog(t.Context(), machine, r)
		if err != nil {
			t.Fatalf("read %+v: %v", r, err)
		}
		return part
	}
	check := func(r driver.LogRead, offset int64, text string, ended bool) {
		t.Helper()
		part := read(s.machine("a", 1), r)
		if part.Offset != offset || string(part.Data) != text || part.Ended != ended || part.End < part.Next() {
			t.Errorf("%+v: %q at %d, ended %v; want %q at %d, ended %v", r, part.Data, part.Offset, part.Ended, text, offset, ended)
		}
	}
	const plenty = 1 << 20
	spec := s.spec("a", 1, s.Commands.OnTerm(3, "the last words"))
	s.ready(t, spec)
	check(driver.LogRead{Limit: plenty}, 0, "ready\n", false)
	check(driver.LogRead{Offset: 2, Limit: 3}, 2, "ady", false)
	check(driver.LogRead{Offset: 6, Limit: plenty}, 6, "", false)
	s.stop(t, spec.Machine, grace)
	d, _ = s.Open(t).(driver.Logs)
	check(driver.LogRead{Offset: 6, Limit: plenty}, 6, "the last words\n", false)
	check(driver.LogRead{Offset: 21, Limit: plenty}, 21, "", true)
	check(driver.LogRead{Offset: 1000, Limit: plenty}, 21, "", true)
	check(driver.LogRead{Offset: -1, Tail: -1, Limit: plenty}, 0, "ready\nthe last words\n", false)
	check(driver.LogRead{Offset: -1, Tail: 1, Limit: plenty}, 6, "the last words\n", false)
	check(driver.LogRead{Offset: -1, Tail: 2, Limit: plenty}, 0, "ready\nthe last words\n", false)
	check(driver.LogRead{Offset: -1, Tail: 9, Limit: plenty}, 0, "ready\nthe last words\n", false)
	check(driver.LogRead{Offset: -1, Tail: 0, Limit: plenty}, 21, "", true)
	if err := s.driver.Remove(t.Context(), spec.Machine); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{spec.Machine, "absent", "", "../../etc"} {
		if _, err := d.ReadLog(t.Context(), name, driver.LogRead{Limit: plenty}); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("read of %q: %v, want ErrNotFound", name, err)
		}
	}
}

// stats asserts what holds of a driver that has the ability.
func (s *suite) stats(t *testing.T) {
	d, ok := s.driver.(driver.Stats)
	if !ok {
		return
	}
	spec := s.spec("a", 1, s.Commands.Idle)
	s.ready(t, spec)
	used, err := d.Stats(t.Context())
	if u := used[spec.Machine]; err != nil || len(used) != 1 || u.Memory <= 0 || u.CPU < 0 || u.MemoryPeak != 0 && u.MemoryPeak < u.Memory/2 {
		t.Errorf("while it runs: %+v, %v", used, err)
	}
	s.stop(t, spec.Machine, grace)
	if used, err = d.Stats(t.Context()); err != nil || len(used) != 0 {
		t.Errorf("after it was stopped: %+v, %v", used, err)
	}
}
