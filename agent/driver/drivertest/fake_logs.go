package drivertest

import (
	"context"
	"fmt"
	"strings"

	"github.com/muster-cloud/muster/agent/driver"
)

// ReadLog reads what a program has printed, all of which is kept.
func (f *Fake) ReadLog(_ context.Context, name string, r driver.LogRead) (driver.LogPart, error) {
	f.host.mu.Lock()
	defer f.host.mu.Unlock()
	m, ok := f.host.machines[name]
	if !ok {
		return driver.LogPart{}, fmt.Errorf("%w: %s", driver.ErrNotFound, name)
	}
	return readText(m.process.Output(), r, m.status.State == driver.Exited), nil
}

// readText reads a part of a log that is kept whole.
func readText(text string, r driver.LogRead, exited bool) driver.LogPart {
	from := min(int(r.Offset), len(text))
	if r.Offset < 0 {
		from = lastLines(text, r.Tail)
	}
	part := driver.LogPart{Offset: int64(from), End: int64(len(text)), Data: []byte(text[from:min(len(text), from+r.Limit)])}
	part.Ended = exited && len(part.Data) == 0
	return part
}

// lastLines is where the last lines begin; below 0 means all.
func lastLines(text string, lines int) int {
	if lines < 0 {
		return 0
	}
	at := len(text)
	for ; lines > 0 && at > 0; lines-- {
		at = strings.LastIndexByte(text[:at-1], '\n') + 1
	}
	return at
}
