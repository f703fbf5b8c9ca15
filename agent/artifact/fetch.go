package artifact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// The defaults of Options.
const (
	DefaultLimit = 1 << 30
	DefaultKeep  = 2 << 30
	DefaultStall = 30 * time.Second
	maxRedirects = 5
)

// Options are the settings of a Fetcher. The zero value works.
type Options struct {
	// Dir is where artifacts are kept and, without a name, while they come; it is made. Nothing else is in it. Default: they come to the
	// system's directory for temporary files, and none is kept.
	Dir       string
	Limit     int64             // bytes; default DefaultLimit, 1 GiB
	Keep      int64             // bytes of all that is kept; default DefaultKeep, 2 GiB; below 0: none is
	Stall     time.Duration     // that a download may bring nothing before it is given up; default DefaultStall, 30 s
	HostPaths []string          // absolute and clean: below which file URLs may read the node's files; default nowhere
	Transport http.RoundTripper // default http.DefaultTransport
	Logger    *slog.Logger      // default: none
}

// Fetcher fetches artifacts. It is safe for concurrent use.
type Fetcher struct {
	o  Options
	mu sync.Mutex // of what has a name in Dir
}

// New returns a Fetcher. It does nothing yet.
func New(o Options) *Fetcher {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.Keep == 0 {
		o.Keep = DefaultKeep
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stall <= 0 {
		o.Stall = DefaultStall
	}
	return &Fetcher{o: o}
}

// Fetched is an artifact on the node, to be closed.
type Fetched struct {
	*os.File        // at its beginning
	SHA256   string // in lower case
	Size     int64
	kept     bool // it was here already
}

// Fetch gets an artifact. A checksum that is not empty has to be its own; when that is
// kept, nobody is asked for it. INVALID: it is another's, or the URL is none; LIMIT: it is too large; FORBIDDEN: a file that is not
// allowed; NOT_FOUND: it is not there; UNAVAILABLE: it cannot be got now, and may be later.
func (f *Fetcher) Fetch(ctx context.Context, from, checksum string) (*Fetched, error) {
	u, err := url.Parse(from)
	if err != nil {
		return nil, muster.InvalidField("deployUrl", "%.200q is no URL", from)
	}
	if err := f.check(u); err != nil {
		return nil, explain(ctx, u, err)
	}
	if got, err := f.kept(ctx, strings.ToLower(checksum)); got != nil || err != nil {
		return got, err
	}
	got, err := f.download(ctx, u)
	if err != nil {
		return nil, err
	}
	if checksum != "" && !strings.EqualFold(checksum, got.SHA256) {
		err := muster.InvalidField("sha256", "what %s has is %s, not %s: get the right file there, or deploy it anew with the right checksum", u.Redacted(), got.SHA256, strings.ToLower(checksum))
		return nil, errors.Join(err, got.Close())
	}
	return got, nil
}

// download gets it from where it is, into a file without a name.
func (f *Fetcher) download(ctx context.Context, u *url.URL) (*Fetched, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(f.o.Stall, func() { cancel(fmt.Errorf("nothing came for %s", f.o.Stall)) })
	defer stall.Stop()
	source, err := f.open(ctx, u)
	if err != nil {
		return nil, explain(ctx, u, err)
	}
	defer source.Close()
	to, err := f.nameless()
	if err != nil {
		return nil, err
	}
	got := &Fetched{File: to}
	if err := f.copy(ctx, got, source, stall); err != nil {
		return nil, errors.Join(explain(ctx, u, err), to.Close())
	}
	return got, nil
}

func (f *Fetcher) dir() string { return cmp.Or(f.o.Dir, os.TempDir()) }

// nameless makes a file that goes when it is closed, or with this process, unless it is named.
func (f *Fetcher) nameless() (*os.File, error) {
	dir := f.dir()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of artifacts: %w", err)
	}
	file, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make a file in %s: %w", dir, err)
	}
	return file, nil
}

// copy reads the source into the file, and sets the alarm off when nothing comes.
func (f *Fetcher) copy(ctx context.Context, to *Fetched, source io.Reader, stall *time.Timer) error {
	sum := sha256.New()
	buffer := make([]byte, 256<<10)
	for {
		n, err := source.Read(buffer)
		stall.Reset(f.o.Stall)
		if to.Size += int64(n); to.Size > f.o.Limit {
			return muster.Errorf(muster.Limit, "it has more than %d bytes: make it smaller, or raise the agent's --artifact-limit", f.o.Limit)
		}
		sum.Write(buffer[:n])
		if _, err := to.Write(buffer[:n]); err != nil {
			return f.full(fmt.Errorf("write it down: %w", err))
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

// full says what to do about a disk that is.
func (f *Fetcher) full(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return muster.Errorf(muster.Unavailable, "%w: free some space on the disk of %s", err, f.dir())
	}
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

// check refuses what is not fetched from anywhere, whether it is kept or not.
func (f *Fetcher) check(u *url.URL) error {
	switch u.Scheme {
	case "http", "https":
		return nil
	case "file":
		_, _, err := f.allowed(u)
		return err
	}
	return muster.InvalidField("deployUrl", "it is neither http, https nor file")
}

func (f *Fetcher) open(ctx context.Context, u *url.URL) (io.ReadCloser, error) {
	if u.Scheme == "file" {
		return f.file(u)
	}
	return f.get(ctx, u)
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

// allowed says in which directory a file of the node's may be read, and how it is called there.
func (f *Fetcher) allowed(u *url.URL) (dir, name string, err error) {
	path := filepath.Clean(u.Path)
	if u.Host != "" || !filepath.IsAbs(path) {
		return "", "", muster.InvalidField("deployUrl", "a file URL has three slashes and an absolute path")
	}
	i := slices.IndexFunc(f.o.HostPaths, func(dir string) bool { return muster.Within(path, dir) })
	if i < 0 {
		return "", "", muster.Errorf(muster.Forbidden, "it is not allowed on this node: start its agent with --allow-host-path %s, or serve it by http", filepath.Dir(path))
	}
	name, err = filepath.Rel(f.o.HostPaths[i], path)
	return f.o.HostPaths[i], name, err
}

// file opens a file of the node's, which has to lie in what is allowed once every link has been followed.
func (f *Fetcher) file(u *url.URL) (io.ReadCloser, error) {
	dir, name, err := f.allowed(u)
	if err != nil {
		return nil, err
	}
	// The root keeps links in: whoever writes below it shall not choose what else is read.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, muster.Errorf(muster.NotFound, "%w", err)
	}
	defer root.Close()
	opened, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil, muster.Errorf(muster.NotFound, "%w", err)
	}
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(muster.Errorf(muster.Invalid, "it is no file"), err, opened.Close())
	}
	return opened, nil
}
