package driver

import (
	"context"
	"time"
)

// Stats is the optional ability to say what machines use.
type Stats interface {
	// Stats returns what each machine that runs has used, by its name. One that
	// cannot be told of is left out.
	Stats(ctx context.Context) (map[string]Usage, error)
}

// Usage is what a machine uses of its host.
type Usage struct {
	CPU        time.Duration // used since its start, of all cores together
	Memory     int64         // in bytes, with what the kernel caches for it
	MemoryPeak int64         // the most that it was, in bytes; 0: the kernel does not tell
}
