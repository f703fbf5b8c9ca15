package archive

import (
	"errors"
	"fmt"
	"io"
)

// The defaults of Limits.
const (
	DefaultUpload   = 4 << 30
	DefaultUnpacked = 8 << 30
	DefaultEntries  = 500_000
	DefaultRatio    = 100
)

// ratioFrom is how much may be unpacked before the ratio counts, in bytes: small
// archives compress as they will.
const ratioFrom = 64 << 20

// Limits bound what is read of an archive. The zero value works.
type Limits struct {
	Upload   int64 // bytes of the archive as it comes; 0: DefaultUpload, 4 GiB
	Unpacked int64 // bytes of all its files; 0: DefaultUnpacked, 8 GiB
	Entries  int   // files, directories and links; 0: DefaultEntries, 500,000
	Ratio    int   // bytes unpacked of each byte of the archive, once 64 MiB are unpacked; 0: DefaultRatio
	Size     int64 // bytes of the archive where all of it is there, which Ratio is of then; 0: it is of what was read so far
	Fixed    bool  // nobody can raise them, and no message says so
}

// WithDefaults returns the limits with every default filled in.
func (l Limits) WithDefaults() Limits {
	if l.Upload == 0 {
		l.Upload = DefaultUpload
	}
	if l.Unpacked == 0 {
		l.Unpacked = DefaultUnpacked
	}
	if l.Entries == 0 {
		l.Entries = DefaultEntries
	}
	if l.Ratio == 0 {
		l.Ratio = DefaultRatio
	}
	return l
}

// raise is what else can be done about a limit that was reached.
func (l Limits) raise(setting string) string {
	if l.Fixed {
		return ""
	}
	return ", or raise the limit, --max-image-" + setting
}

// bombs reports whether so much unpacked is too much for that much packed.
func (l Limits) bombs(unpacked, packed int64) bool {
	return unpacked > ratioFrom && unpacked > int64(l.Ratio)*packed
}

// bomb refuses what bombs.
func (l Limits) bomb() error {
	return &Refused{Large: true, Why: fmt.Sprintf("unpacks to more than %d times its size, as a bomb does: leave out files that are empty space%s", l.Ratio, l.raise("ratio"))}
}

// Refused is why an archive is of no use, or too large.
type Refused struct {
	Entry string // as the archive writes it; empty: it is about the whole
	Why   string // what is wrong and what to do
	Large bool   // a limit was reached
}

// Error returns the message.
func (r *Refused) Error() string {
	if r.Entry == "" {
		return "the archive " + r.Why
	}
	return fmt.Sprintf("the entry %.300q of the archive %s", r.Entry, r.Why)
}

// at names the entry that an error in the middle of it is about.
func at(entry string, err error) error {
	if refused, ok := errors.AsType[*Refused](err); ok {
		named := *refused
		named.Entry = entry
		return &named
	}
	return err
}

// counter counts what is read of the archive as it comes, and ends it at a limit.
type counter struct {
	from   io.Reader
	read   int64
	limits Limits
	err    error // of reading, which is not the archive's fault
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	if c.read += int64(n); c.read > c.limits.Upload {
		return 0, &Refused{Large: true, Why: fmt.Sprintf("has more than %d bytes: leave out what is not needed%s", c.limits.Upload, c.limits.raise("upload"))}
	}
	return n, err
}

// ratio ends what unpacks to far more than it is.
type ratio struct {
	from io.Reader
	in   *counter
	out  int64
}

func (r *ratio) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.out += int64(n)
	if limits := r.in.limits; limits.bombs(r.out, max(r.in.read, limits.Size)) {
		return 0, limits.bomb()
	}
	return n, err
}
