package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory of decompression, in bytes.
const maxWindow = 128 << 20

// reader gives the entries of an archive that pass all checks.
type reader struct {
	in     *counter
	tar    *tar.Reader
	plain  io.Reader // the tar file, decompressed
	close  func()
	limits Limits
	tree   tree
	sum    Summary
}

// Summary is what was found in an archive.
type Summary struct {
	Digest   string // of the canonical form: "sha256:" and 64 hex digits
	Unpacked int64  // bytes of all its files
	Entries  int
	Boot     bool // there is a systemd to boot
}

// open finds out how an archive is compressed. Whatever is read of it also goes
// to the copy, decompressed, if there is one.
func open(from io.Reader, limits Limits, copied io.Writer) (*reader, error) {
	limits = limits.WithDefaults()
	in := &counter{from: from, limits: limits}
	buffered := bufio.NewReaderSize(in, 256<<10)
	plain, end, err := decompress(buffered)
	if err != nil {
		return nil, err
	}
	plain = &ratio{from: plain, in: in}
	if copied != nil {
		plain = io.TeeReader(plain, copied)
	}
	return &reader{in: in, tar: tar.NewReader(plain), plain: plain, close: end, limits: limits, tree: tree{}}, nil
}

func decompress(r *bufio.Reader) (io.Reader, func(), error) {
	magic, err := r.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	starts := func(prefix string) bool { return bytes.HasPrefix(magic, []byte(prefix)) }
	switch {
	case starts("\x1f\x8b"):
		unzip, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, damaged(err)
		}
		return unzip, func() {}, nil
	case starts("\x28\xb5\x2f\xfd"):
		unzip, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, damaged(err)
		}
		return unzip, unzip.Close, nil
	case starts("\xfd7zXZ\x00"), starts("BZh"):
		return nil, nil, &Refused{Why: "is compressed by xz or bzip2; compress it by zstd or gzip, or not at all"}
	case len(magic) == 0:
		return nil, nil, &Refused{Why: "is empty"}
	}
	return r, func() {}, nil
}

func damaged(err error) error {
	if refused, ok := errors.AsType[*Refused](err); ok {
		return refused
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &Refused{Why: "ends in the middle, or is no tar file: get the whole of it"}
	}
	return &Refused{Why: fmt.Sprintf("is damaged, or no tar file: %v", err)}
}

// next returns the next entry, as it is in the canonical form, or io.EOF. Its
// content is to be read from the reader before the one after it.
func (r *reader) next() (*tar.Header, error) {
	for {
		h, err := r.tar.Next()
		switch {
		case errors.Is(err, io.EOF):
			// Something may follow that a tar reader does not look at; a digest does.
			if _, err := io.Copy(io.Discard, r.plain); err != nil {
				return nil, r.blame(err)
			}
			if r.sum.Entries == 0 {
				return nil, &Refused{Why: "has no entries"}
			}
			return nil, io.EOF
		case err != nil:
			return nil, r.blame(err)
		case h.Typeflag == tar.TypeXGlobalHeader:
			continue
		case h.Typeflag == tar.TypeGNUSparse:
			h.Typeflag = tar.TypeReg // reading it fills the holes
		}
		entry, err := r.check(h)
		if err != nil || entry != nil {
			return entry, err
		}
	}
}

// blame tells apart what the archive is to blame for and what is not.
func (r *reader) blame(err error) error {
	if r.in.err != nil {
		return fmt.Errorf("read the archive: %w", r.in.err)
	}
	return damaged(err)
}

// check returns an entry as it is in the canonical form; nil: it is left out.
func (r *reader) check(h *tar.Header) (*tar.Header, error) {
	entry, err := r.tree.add(h)
	if err != nil || entry == nil {
		return nil, err
	}
	r.sum.Entries++
	if len(r.tree) > r.limits.Entries { // directories without an entry of their own count too
		return nil, &Refused{Entry: h.Name, Large: true, Why: fmt.Sprintf("is one too many: at most %d are allowed; leave some out%s", r.limits.Entries, r.limits.raise("entries"))}
	}
	if h.Typeflag == tar.TypeReg {
		if r.sum.Unpacked += h.Size; h.Size < 0 || r.sum.Unpacked > r.limits.Unpacked || r.sum.Unpacked < 0 {
			return nil, &Refused{Entry: h.Name, Large: true, Why: fmt.Sprintf("of %d bytes makes it larger than %d bytes: leave it out%s", h.Size, r.limits.Unpacked, r.limits.raise("size"))}
		}
	}
	if entry.Name == "usr/lib/systemd/systemd" || entry.Name == "lib/systemd/systemd" {
		r.sum.Boot = true
	}
	return entry, nil
}
