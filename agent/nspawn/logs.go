package nspawn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
)

// ReadLog implements driver.Logs on the machine's console log.
func (d *Driver) ReadLog(_ context.Context, name string, r driver.LogRead) (driver.LogPart, error) {
	m := d.machine(name)
	return m.readLog(r, func() (bool, error) {
		status, _, err := observe(m)
		return status.State == driver.Exited, err
	})
}

// readLog reads a part of the log, which exited says to be the last.
func (m machine) readLog(r driver.LogRead, exited func() (bool, error)) (driver.LogPart, error) {
	part, err := m.readConsole(r)
	if err != nil || len(part.Data) > 0 {
		return part, err
	}
	if ended, err := exited(); err != nil || !ended {
		return part, err
	}
	// What it wrote last may have come in between.
	part, err = m.readConsole(driver.LogRead{Offset: part.Offset, Limit: r.Limit})
	part.Ended = len(part.Data) == 0
	return part, err
}

// readConsole reads a part of the log. What the supervisor drops or moves meanwhile is noticed afterwards, and read again.
func (m machine) readConsole(r driver.LogRead) (driver.LogPart, error) {
	for range 10 {
		before := m.span()
		part, err := m.readSpan(before, r)
		after := m.span()
		if err != nil || before == after && !before.Cutting {
			return part, err
		}
		if after.Base == before.Base && !before.Cutting && !after.Cutting && part.Offset >= after.Start {
			return part, nil
		}
	}
	return driver.LogPart{Offset: max(r.Offset, 0), End: max(r.Offset, 0)}, nil // it moves too fast: another time
}

func (m machine) readSpan(s span, r driver.LogRead) (part driver.LogPart, err error) {
	f, err := os.Open(m.path("console.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return driver.LogPart{}, nil
	}
	if err != nil {
		return part, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return part, err
	}
	// After a power failure the hole can be larger than was written down.
	if data, err := f.Seek(0, unix.SEEK_DATA); err == nil {
		s.Start = max(s.Start, s.Base+data)
	}
	end := s.Base + info.Size()
	part.Offset, part.End = min(max(r.Offset, s.Start), end), end
	if r.Offset < 0 {
		if part.Offset, err = tail(f, s, end, r.Tail); err != nil {
			return part, err
		}
	}
	part.Data, err = io.ReadAll(io.NewSectionReader(f, part.Offset-s.Base, min(int64(r.Limit), end-part.Offset)))
	return part, err
}

// tail returns the place where the last lines begin, or the first whole one that is kept.
func tail(f *os.File, s span, end int64, lines int) (int64, error) {
	begin := max(s.Start, end-consoleLimit)
	text := make([]byte, end-begin)
	n, err := f.ReadAt(text, begin-s.Base)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	text = text[:n]
	first := 0
	if begin > 0 { // in the middle of a line, most likely
		first = bytes.IndexByte(text, '\n') + 1
	}
	if lines < 0 {
		return begin + int64(first), nil
	}
	at := len(text)
	for range lines {
		if at <= first {
			return begin + int64(first), nil
		}
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1
	}
	return begin + int64(max(at, first)), nil
}
