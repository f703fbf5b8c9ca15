package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
)

// Canonical reads an archive, whoever made it, and writes its canonical form,
// compressed by zstd. A *Refused error is the archive's fault. What was written before
// an error is of no use.
func Canonical(ctx context.Context, to io.Writer, from io.Reader, limits Limits) (Summary, error) {
	r, err := open(from, limits, nil)
	if err != nil {
		return Summary{}, err
	}
	defer r.close()
	var packed, unpacked tally
	zipped, err := zstd.NewWriter(io.MultiWriter(to, &packed), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Summary{}, err
	}
	digest := sha256.New()
	if err := r.copy(ctx, tar.NewWriter(io.MultiWriter(zipped, digest, &unpacked))); err != nil {
		return Summary{}, errors.Join(err, zipped.Close())
	}
	r.sum.Digest = digestOf(digest)
	if err := zipped.Close(); err != nil {
		return Summary{}, err
	}
	// What came may have been as large as it unpacks, or had its holes listed: no agent would take this.
	if r.limits.bombs(int64(unpacked), int64(packed)) {
		return Summary{}, r.limits.bomb()
	}
	return r.sum, nil
}

// tally counts what is written.
type tally int64

func (t *tally) Write(p []byte) (int, error) {
	*t += tally(len(p))
	return len(p), nil
}

// copy writes every entry.
func (r *reader) copy(ctx context.Context, to *tar.Writer) error {
	for {
		entry, err := r.next()
		if errors.Is(err, io.EOF) {
			return to.Close()
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := to.WriteHeader(entry); err != nil {
			return err
		}
		if err := r.copyContent(to, entry); err != nil {
			return err
		}
	}
}

// copyContent writes the content of an entry, and says whether its source or its
// target is to blame.
func (r *reader) copyContent(to io.Writer, entry *tar.Header) error {
	if entry.Typeflag != tar.TypeReg {
		return nil
	}
	target := &blamed{to: to}
	_, err := io.Copy(target, r.tar)
	switch {
	case target.err != nil:
		return target.err
	case err != nil:
		return at(entry.Name, r.blame(err))
	}
	return nil
}

// blamed remembers that writing failed.
type blamed struct {
	to  io.Writer
	err error
}

func (b *blamed) Write(p []byte) (int, error) {
	n, err := b.to.Write(p)
	if err != nil {
		b.err = err
	}
	return n, err
}

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }
