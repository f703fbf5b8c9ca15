package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/archive"
	"github.com/muster-cloud/muster/client"
)

const imageImportLong = `Import an image to the server: a tar file (plain, or compressed by gzip or zstd),
a directory with the tree of a system, or the URL of a tar file, which is fetched from
here. A - reads a tar file from standard input.

A name that is taken moves to the new archive. Instances that were launched from the
old one keep it.`

const imageImportExamples = `  muster image import debian ./debian.tar.zst
  muster image import debian /srv/trees/bookworm
  muster image import web https://images.example/web.tar.gz --sha256 9f86d0818…`

func (a *app) imageImportCommand() *cobra.Command {
	var digest string
	c := &cobra.Command{
		Use: "import NAME TARBALL|DIRECTORY|URL", Short: "Import an image to the server",
		Long: imageImportLong, Example: imageImportExamples, Args: exactly(2, "a name and where the image is"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := muster.CheckName("name", args[0]); err != nil {
				return err
			}
			if digest = strings.TrimPrefix(strings.ToLower(digest), "sha256:"); digest != "" {
				if err := muster.CheckDigest("--sha256", "sha256:"+digest); err != nil {
					return err
				}
			}
			return a.importImage(c.Context(), args[0], args[1], digest)
		},
	}
	c.Flags().StringVar(&digest, "sha256", "", "the `DIGEST` that the tar file has to have")
	return c
}

func (a *app) importImage(ctx context.Context, name, from, digest string) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	body, err := a.openImage(ctx, from, digest)
	if err != nil {
		return err
	}
	image, err := api.ImportImage(ctx, name, sourceOf(from), body)
	if err := errors.Join(err, body.Close()); err != nil {
		return err
	}
	return a.write(image, func(w io.Writer) { printImages(w, []*client.Image{image}) })
}

// sourceOf is where an image is from, for people: a URL without what may be secret in it.
func sourceOf(from string) string {
	at, err := url.Parse(from)
	if err != nil || at.Host == "" {
		return from
	}
	at.User, at.RawQuery, at.Fragment = nil, "", ""
	return at.String()
}

// openImage opens what is to be imported as a stream of an archive.
func (a *app) openImage(ctx context.Context, from, digest string) (io.ReadCloser, error) {
	body, err := a.openSource(ctx, from)
	if err != nil || digest == "" {
		return body, err
	}
	if _, packs := body.(*packed); packs {
		return nil, errors.Join(usageError("--sha256 is the digest of a tar file, and %s is a directory; leave it out", quote(from)), body.Close())
	}
	return &verified{ReadCloser: body, want: digest, sum: sha256.New()}, nil
}

func (a *app) openSource(ctx context.Context, from string) (io.ReadCloser, error) {
	if from == "-" {
		return io.NopCloser(a.std.In), nil
	}
	if strings.HasPrefix(from, "http://") || strings.HasPrefix(from, "https://") {
		return download(ctx, from)
	}
	info, err := os.Stat(from)
	if err != nil {
		return nil, usageError("%s cannot be imported: %w; give a tar file, a directory or a URL", quote(from), err)
	}
	if info.IsDir() {
		dir, err := filepath.Abs(from)
		if err != nil {
			return nil, err
		}
		return a.pack(ctx, dir), nil
	}
	return os.Open(from)
}

func download(ctx context.Context, from string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, usageError("%s is no URL: %w", quote(from), err)
	}
	request.Header.Set("User-Agent", "muster/"+version)
	request.Header.Set("Accept-Encoding", "identity") // else the transport would unpack it
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, muster.Errorf(muster.Unavailable, "the image cannot be fetched: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, muster.Errorf(muster.Unavailable, "the image cannot be fetched: %s answered %s", sourceOf(from), response.Status)
	}
	return response.Body, nil
}

// packed is a directory as a stream of an archive, made while it is read.
type packed struct {
	*io.PipeReader
	packing errgroup.Group
}

func (a *app) pack(ctx context.Context, dir string) *packed {
	read, write := io.Pipe()
	p := &packed{PipeReader: read}
	p.packing.Go(func() error {
		zipped, err := zstd.NewWriter(write, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return write.CloseWithError(err)
		}
		left, err := archive.Pack(ctx, zipped, dir)
		err = errors.Join(err, zipped.Close())
		if err == nil && left > 0 {
			a.say("left out devices, pipes, sockets and mounts: %d", left)
		}
		return write.CloseWithError(err)
	})
	return p
}

// Close ends the packing and waits for it.
func (p *packed) Close() error {
	return errors.Join(p.PipeReader.Close(), p.packing.Wait())
}

// verified fails at its end when the stream was not what it should be, so that
// nothing becomes of it.
type verified struct {
	io.ReadCloser
	want string
	sum  hash.Hash
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.ReadCloser.Read(p)
	v.sum.Write(p[:n])
	if err == io.EOF { //nolint:errorlint // io.Reader's own contract
		if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.want {
			return 0, muster.Errorf(muster.Invalid, "the tar file has the digest %s, not %s: nothing was imported; get it again, or correct --sha256", got, v.want)
		}
	}
	return n, err
}
