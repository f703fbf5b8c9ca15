package driver

import (
	"context"
)

// Logs is the optional ability to read what machines have written to their
// consoles. A driver keeps at least the last LogKept bytes of each, and not much
// more: a payload that floods its console fills nothing.
type Logs interface {
	// ReadLog returns what there is from a place on, at once: nothing when
	// nothing was written after it. A place is a count of the bytes that were
	// written before it since the machine's launch, and stays what it is when older
	// bytes are dropped. The machine may have Exited. ErrNotFound: it is not there.
	ReadLog(ctx context.Context, machine string, r LogRead) (LogPart, error)
}

// LogKept is how much of a console's end is readable at least, in bytes.
const LogKept = 256 << 10

// LogRead says what to read.
type LogRead struct {
	Offset int64 // where to begin; below 0: with the last Tail lines
	Tail   int   // how many lines, the last one may be unfinished; below 0: all that is kept
	Limit  int   // how many bytes at most; at least 1
}

// LogPart is a part of a console's output.
type LogPart struct {
	Offset int64  // of the first byte: higher than asked for when that is no longer kept
	Data   []byte // as it was written, whatever it was
	End    int64  // the place after the newest byte that there is
	Ended  bool   // the machine has Exited, and nothing follows
}

// Next is the place after the part.
func (p *LogPart) Next() int64 { return p.Offset + int64(len(p.Data)) }
