package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/muster-cloud/muster"
)

// firstPause is that after the first failure; it doubles while nothing comes.
const firstPause = 200 * time.Millisecond

// download completes what has come of an archive, and reports whether something had
// come in an earlier try of this process or another.
func (p *Puller) download(ctx context.Context, part *os.File, digest string) (resumed bool, err error) {
	pause := firstPause
	for {
		offset, err := part.Seek(0, io.SeekEnd)
		if err != nil {
			return resumed, err
		}
		resumed = resumed || offset > 0
		n, err := p.more(ctx, part, digest, offset)
		switch {
		case err == nil:
			return resumed, nil
		case ctx.Err() != nil:
			return resumed, ctx.Err()
		case offset > 0 && muster.CodeOf(err) == muster.Invalid:
			return resumed, nil // there is no more of it: unpacking finds out whether it is the whole
		case muster.CodeOf(err) != muster.Unavailable:
			return resumed, err
		}
		if n > 0 {
			pause = firstPause
		}
		p.o.Logger.Warn("pulling an image broke off; going on", "digest", digest, "has", offset+n, "err", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return resumed, ctx.Err()
		}
		pause = min(2*pause, p.o.Pause)
	}
}

// more appends what comes from an offset on. UNAVAILABLE: it broke off, and can go on.
func (p *Puller) more(ctx context.Context, part *os.File, digest string, offset int64) (n int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stall := time.AfterFunc(p.o.Stall, cancel)
	defer stall.Stop()
	body, size, err := p.o.From.OpenImage(ctx, digest, offset)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	if limit := p.o.Limits.WithDefaults().Upload; size > limit {
		return 0, muster.Errorf(muster.Limit, "its archive has %d bytes, at most %d are allowed here: raise --max-image-upload of the agent", size, limit)
	}
	buffer := make([]byte, 256<<10)
	for {
		read, err := body.Read(buffer)
		stall.Reset(p.o.Stall)
		if read > 0 {
			if _, err := part.Write(buffer[:read]); err != nil {
				return n, err
			}
			n += int64(read)
		}
		switch {
		case errors.Is(err, io.EOF) && offset+n < size:
			return n, broken(offset+n, size, io.ErrUnexpectedEOF)
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, broken(offset+n, size, err)
		}
	}
}

func broken(has, size int64, err error) error {
	return &muster.Error{Code: muster.Unavailable, Message: fmt.Sprintf("the connection ended after %d of %d bytes: %v", has, size, err), Err: err}
}
