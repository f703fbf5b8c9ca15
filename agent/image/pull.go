package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/archive"
)

// Images of a server's are in a directory that only root enters, for they have
// programs that run as root: NAME is the digest's hex digits, in it the tree and its
// metadata. No image of a node's own can have such a name.
const (
	pulledDir  = ".pulled"
	treeName   = "root"
	aboutName  = "image.json"
	partPrefix = ".part-"   // what has come of an archive so far
	makePrefix = ".making-" // a tree in the making
	gonePrefix = ".gone-"   // a tree on its way out
	hexPrefix  = "sha256:"
)

// Source has the archives of images. *client.Client is one.
type Source interface {
	// OpenImage reads the archive of a digest from an offset on and tells its whole size.
	OpenImage(ctx context.Context, digest string, offset int64) (io.ReadCloser, int64, error)
}

// PullerOptions are the settings of a Puller. Store and From have to be there.
type PullerOptions struct {
	Store  *Store
	From   Source
	Limits archive.Limits
	Keep   time.Duration // how long what nothing uses is kept; 0: 24 h
	Stall  time.Duration // without a byte, after which a download is begun again where it was; 0: 30 s
	Pause  time.Duration // between tries at most; 0: 10 s
	Logger *slog.Logger  // nil: none
}

// Puller gets images from a server and takes away those that nothing uses. There is one for a store.
type Puller struct {
	o    PullerOptions
	once sync.Once // removes what a crash left
	mu   sync.Mutex
	jobs map[string]*job // pulls under way, by digest
}

// job is a pull that several may wait for. One at a time works on it.
type job struct {
	turn    chan struct{} // has room for the one who works
	waiting int
	failed  int // how many tries have failed for good
	err     error
}

// NewPuller returns a puller that has done nothing yet.
func NewPuller(o PullerOptions) *Puller {
	if o.Keep == 0 {
		o.Keep = 24 * time.Hour
	}
	if o.Stall == 0 {
		o.Stall = 30 * time.Second
	}
	if o.Pause == 0 {
		o.Pause = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Puller{o: o, jobs: map[string]*job{}}
}

// Has reports whether the image of a digest is on the node.
func (p *Puller) Has(digest string) bool {
	_, err := p.o.Store.Resolve("", digest)
	return err == nil
}

// Pull returns once the image of a digest is on the node. It goes on where it was after the
// server, the connection or this process has ended, and tries for as long as ctx lasts. Those who
// want the same at the same time share one download. An error is final: the server does not have
// it, it is not what it should be, or the disk is full; nothing is left then.
func (p *Puller) Pull(ctx context.Context, name, digest string) error {
	if err := muster.CheckDigest("imageDigest", digest); err != nil {
		return err
	}
	p.once.Do(p.sweep)
	j := p.join(digest)
	defer p.leave(digest, j)
	p.mu.Lock()
	failed := j.failed
	p.mu.Unlock()
	select {
	case j.turn <- struct{}{}:
		defer func() { <-j.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.Has(digest) {
		return nil
	}
	p.mu.Lock()
	fresh, err := j.failed == failed, j.err
	p.mu.Unlock()
	if !fresh {
		return err // it failed for the one who was waited for
	}
	err = p.pull(ctx, name, digest)
	if err != nil && ctx.Err() == nil {
		p.mu.Lock()
		j.failed, j.err = j.failed+1, err
		p.mu.Unlock()
	}
	return err
}

func (p *Puller) join(digest string) *job {
	p.mu.Lock()
	defer p.mu.Unlock()
	j := p.jobs[digest]
	if j == nil {
		j = &job{turn: make(chan struct{}, 1)}
		p.jobs[digest] = j
	}
	j.waiting++
	return j
}

func (p *Puller) leave(digest string, j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.waiting--; j.waiting == 0 {
		delete(p.jobs, digest)
	}
}

// freshTries is how often an image is pulled anew whose parts, from several tries, did not fit together.
const freshTries = 3

// pull downloads and unpacks.
func (p *Puller) pull(ctx context.Context, name, digest string) error {
	began := time.Now()
	img := Image{Name: name, Digest: digest, Source: "the server", Created: began.UTC()}
	if err := os.MkdirAll(p.o.Store.pulled(), 0o700); err != nil {
		return fmt.Errorf("image store: %w", err)
	}
	for try := 1; ; try++ {
		resumed, err := p.try(ctx, img)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, wrong := errors.AsType[*mismatch](err); wrong && resumed && try < freshTries {
			p.o.Logger.Warn("what had come of an image was damaged; it is pulled anew", "image", name, "digest", digest, "err", err)
			continue
		}
		if err != nil {
			return full(fmt.Errorf("pull image %s: %w", name, err), p.o.Store.dir)
		}
		p.o.Logger.Info("an image was pulled", "image", name, "digest", digest, "took", time.Since(began))
		return nil
	}
}

// try pulls once, and reports whether some of it had come before. What has come is
// kept for the next time when ctx ends it.
func (p *Puller) try(ctx context.Context, img Image) (resumed bool, err error) {
	part, err := os.OpenFile(filepath.Join(p.o.Store.pulled(), partPrefix+hexOf(img.Digest)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	defer func() {
		if ctx.Err() == nil {
			err = errors.Join(err, os.Remove(part.Name()))
		}
		err = errors.Join(err, part.Close())
	}()
	if resumed, err = p.download(ctx, part, img.Digest); err != nil {
		return resumed, err
	}
	return resumed, p.unpack(ctx, part, img)
}

// full says what to do about a disk that is.
func full(err error, dir string) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return muster.Errorf(muster.Unavailable, "%w: free some space on the disk of %s, then start the instance again", err, dir)
	}
	return err
}

// mismatch is what came and is not the image.
type mismatch struct{ why string }

func (m *mismatch) Error() string { return m.why }

// unpack makes the tree of an archive that is there, and publishes it when it is the right one.
func (p *Puller) unpack(ctx context.Context, part *os.File, img Image) error {
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(p.o.Store.pulled(), makePrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // gone by then when it was published
	tree := filepath.Join(tmp, treeName)
	if err := errors.Join(os.Mkdir(tree, 0o755), os.Chmod(tree, 0o755)); err != nil {
		return err
	}
	info, err := part.Stat()
	if err != nil {
		return err
	}
	limits := p.o.Limits
	limits.Size = info.Size()
	made, err := archive.Unpack(ctx, tree, part, limits)
	if refused, ok := errors.AsType[*archive.Refused](err); ok && !refused.Large {
		return &mismatch{refused.Error()}
	}
	if err != nil {
		return err
	}
	if made.Digest != img.Digest {
		return &mismatch{fmt.Sprintf("what came has the digest %s, not %s: the server's copy is damaged; import the image again", made.Digest, img.Digest)}
	}
	text, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, aboutName), append(text, '\n'), 0o600); err != nil {
		return err
	}
	if err := flush(tmp); err != nil { // or a power failure could leave a tree with holes
		return err
	}
	return os.Rename(tmp, filepath.Join(p.o.Store.pulled(), hexOf(img.Digest)))
}

// flush writes the file system of a directory to its disk.
func flush(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}

// sweep removes what a crash left. What has come of archives stays: it is gone on with.
func (p *Puller) sweep() {
	for _, prefix := range []string{makePrefix, gonePrefix} {
		left, _ := filepath.Glob(filepath.Join(p.o.Store.pulled(), prefix+"*")) // the pattern is valid
		for _, path := range left {
			if err := os.RemoveAll(path); err != nil {
				p.o.Logger.Warn("what a crash left of an image was not removed", "path", path, "err", err)
			}
		}
	}
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, hexPrefix) }

func (s *Store) pulled() string { return filepath.Join(s.dir, pulledDir) }

// Resolve returns the image that an instance starts from: with a digest the server's, which was
// pulled, else the node's own of that name. ErrNoImage when it is not there.
func (s *Store) Resolve(name, digest string) (Image, error) {
	if digest == "" {
		return s.Find(name)
	}
	if err := muster.CheckDigest("imageDigest", digest); err != nil {
		return Image{}, err
	}
	at := filepath.Join(s.pulled(), hexOf(digest))
	text, err := os.ReadFile(filepath.Join(at, aboutName))
	if errors.Is(err, fs.ErrNotExist) {
		return Image{}, fmt.Errorf("%w: %s of the digest %s has not been pulled", driver.ErrNoImage, name, digest)
	}
	img := Image{}
	if err == nil {
		err = json.Unmarshal(text, &img)
	}
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", digest, err)
	}
	img.Digest, img.Path = digest, filepath.Join(at, treeName)
	img.look()
	return img, nil
}

// Pulled returns the images that were pulled from a server, in order of their digests.
func (s *Store) Pulled() ([]Image, error) {
	entries, err := os.ReadDir(s.pulled())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var images []Image
	for _, entry := range entries {
		digest := hexPrefix + entry.Name()
		if muster.CheckDigest("digest", digest) != nil {
			continue
		}
		img, err := s.Resolve("", digest)
		if errors.Is(err, driver.ErrNoImage) {
			continue // taken away meanwhile
		}
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}
