package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// The defaults of Options.
const (
	DefaultLimit = 1 << 30
	DefaultStall = 30 * time.Second
	maxRedirects = 5
)

// Options are the settings of a Fetcher. The zero value works.
type Options struct {
	Dir       string            // where the file is that has no name, with room for it; default the system's for temporary ones
	Limit     int64             // bytes; default DefaultLimit, 1 GiB
	Stall     time.Duration     // that a download may bring nothing before it is given up; default DefaultStall, 30 s
	HostPaths []string          // absolute and clean: below which file URLs may read the node's files; default nowhere
	Transport http.RoundTripper // default http.DefaultTransport
}

// Fetcher fetches artifacts. It is safe for concurrent use.
type Fetcher struct{ o Options }

// New returns a Fetcher. It does nothing yet.
func New(o Options) *Fetcher {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.Stall <= 0 {
		o.Stall = DefaultStall
	}
	return &Fetcher{o: o}
}

// Fetched is an artifact on the node, to be closed.
type Fetched struct {
	*os.File        // at its beginning
	Name     string // the last part of the URL's path; may be anything
	SHA256   string // in lower case
	Size     int64
}

// Fetch gets an artifact. A checksum that is not empty has to be its own. INVALID: it is
// not, or the URL is none; LIMIT: it is too large; FORBIDDEN: a file that is not
// allowed; NOT_FOUND: it is not there; UNAVAILABLE: it cannot be got now, and may be later.
func (f *Fetcher) Fetch(ctx context.Context, from, checksum string) (*Fetched, error) {
	u, err := url.Parse(from)
	if err != nil {
		return nil, muster.InvalidField("deployUrl", "%.200q is no URL", from)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(f.o.Stall, func() { cancel(fmt.Errorf("nothing came for %s", f.o.Stall)) })
	defer stall.Stop()
	source, err := f.open(ctx, u)
	if err != nil {
		return nil, explain(ctx, u, err)
	}
	defer source.Close()
	to, err := os.OpenFile(f.dir(), os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", f.dir(), err)
	}
	got := &Fetched{File: to, Name: filepath.Base(u.Path)}
	if err := f.copy(ctx, got, source, stall); err != nil {
		return nil, errors.Join(explain(ctx, u, err), to.Close())
	}
	if checksum != "" && !strings.EqualFold(checksum, got.SHA256) {
		err := muster.InvalidField("sha256", "what %s has is %s, not %s: give the right checksum, or get the right file there", u.Redacted(), got.SHA256, strings.ToLower(checksum))
		return nil, errors.Join(err, to.Close())
	}
	return got, nil
}

func (f *Fetcher) dir() string {
	if f.o.Dir == "" {
		return os.TempDir()
	}
	return f.o.Dir
}

// copy reads the source into the file, and sets the alarm off when nothing comes.
func (f *Fetcher) copy(ctx context.Context, to *Fetched, source io.Reader, stall *time.Timer) error {
	sum := sha256.New()
	buffer := make([]byte, 256<<10)
	for {
		n, err := source.Read(buffer)
		stall.Reset(f.o.Stall)
		if to.Size += int64(n); to.Size > f.o.Limit {
			return muster.Errorf(muster.Limit, "it has more than %d bytes: make it smaller, or raise the agent's limit", f.o.Limit)
		}
		sum.Write(buffer[:n])
		if _, err := to.Write(buffer[:n]); err != nil {
			return fmt.Errorf("write it down: %w", err)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return muster.Errorf(muster.Unavailable, "it broke off after %d bytes: %w", to.Size, err)
		}
	}
	to.SHA256 = hex.EncodeToString(sum.Sum(nil))
	_, err := to.Seek(0, io.SeekStart)
	return err
}

// explain names what could not be fetched.
func explain(ctx context.Context, u *url.URL, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = muster.Errorf(muster.Unavailable, "%w", cause)
	}
	code := muster.CodeOf(err)
	return &muster.Error{Code: code, Message: fmt.Sprintf("fetch %.300s: %v", u.Redacted(), err), Err: err}
}

func (f *Fetcher) open(ctx context.Context, u *url.URL) (io.ReadCloser, error) {
	switch u.Scheme {
	case "http", "https":
		return f.get(ctx, u)
	case "file":
		return f.file(u)
	}
	return nil, muster.InvalidField("deployUrl", "it is neither http, https nor file")
}

func (f *Fetcher) get(ctx context.Context, u *url.URL) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, muster.Errorf(muster.Invalid, "%w", err)
	}
	client := http.Client{Transport: f.o.Transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= maxRedirects:
			return fmt.Errorf("it leads on more than %d times", maxRedirects)
		case u.Scheme == "https" && next.URL.Scheme != "https":
			return fmt.Errorf("it leads on to %s without TLS", next.URL.Redacted())
		}
		return nil
	}}
	response, err := client.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // without the URL, which is named already
		}
		return nil, muster.Errorf(muster.Unavailable, "%w", err)
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	code := muster.Unavailable
	if response.StatusCode/100 == 4 && response.StatusCode != http.StatusTooManyRequests && response.StatusCode != http.StatusRequestTimeout {
		code = muster.NotFound
	}
	return nil, errors.Join(muster.Errorf(code, "the answer is %.100s", response.Status), response.Body.Close())
}

// file opens a file of the node's, which has to lie in what is allowed once every link has been followed.
func (f *Fetcher) file(u *url.URL) (io.ReadCloser, error) {
	path := filepath.Clean(u.Path)
	if u.Host != "" || !filepath.IsAbs(path) {
		return nil, muster.InvalidField("deployUrl", "a file URL has three slashes and an absolute path")
	}
	i := slices.IndexFunc(f.o.HostPaths, func(dir string) bool { return muster.Within(path, dir) })
	if i < 0 {
		return nil, muster.Errorf(muster.Forbidden, "it is not allowed on this node: start its agent with --allow-host-path %s, or serve it by http", filepath.Dir(path))
	}
	// The root keeps links in: whoever writes below it shall not choose what else is read.
	root, err := os.OpenRoot(f.o.HostPaths[i])
	if err != nil {
		return nil, muster.Errorf(muster.NotFound, "%w", err)
	}
	defer root.Close()
	name, err := filepath.Rel(f.o.HostPaths[i], path)
	if err != nil {
		return nil, err
	}
	opened, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil, muster.Errorf(muster.NotFound, "%w", err)
	}
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(muster.Errorf(muster.Invalid, "it is no file"), err, opened.Close())
	}
	return opened, nil
}
