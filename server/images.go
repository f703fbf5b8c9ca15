package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/images"
)

const (
	// imageStall ends an upload or a download that has not gone on for so long.
	imageStall = 30 * time.Second
	// imageSweep is how often archives that nobody needs are looked for.
	imageSweep = time.Minute
)

func (s *Server) openImages() (err error) {
	o := s.options
	s.images, err = images.Open(images.Options{Dir: filepath.Join(o.DataDir, "images"), Limits: o.Images, Reserve: o.ImageReserve})
	return err
}

// putImage takes an archive: PUT /images/NAME?source=TEXT, the archive as the body, optionally with its
// digest in Content-Digest (RFC 9530), also as a trailer. It answers with the image.
func (s *Server) putImage() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		image, err := s.importImage(r.Context(), w, r)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(imageStall))
		if err != nil {
			s.registry.AuditRefused(muster.PrincipalOf(r.Context()), err)
			s.refuseImage(w, err)
			return
		}
		body, err := json.Marshal(image)
		if err != nil {
			s.refuseImage(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = w.Write(append(body, '\n'))
	})
}

func (s *Server) importImage(ctx context.Context, w http.ResponseWriter, r *http.Request) (*muster.Image, error) {
	name := r.PathValue("name")
	if err := wholeCluster(muster.PrincipalOf(ctx)); err != nil { // before all of it is read
		return nil, err
	}
	if err := muster.CheckName("name", name); err != nil {
		return nil, err
	}
	began := time.Now()
	body := &upload{s: s, by: muster.PrincipalOf(ctx), from: r.Body, control: http.NewResponseController(w), sum: sha256.New()}
	kept, err := s.images.Import(ctx, body, func() error { return body.check(r) })
	if err != nil {
		return nil, err
	}
	defer kept.Release()
	image, _, err := s.registry.PutImage(ctx, muster.Image{
		Name: name, Digest: kept.Digest, Size: kept.Size, UnpackedSize: kept.Unpacked, Entries: kept.Entries,
		Boot: kept.Boot, Source: r.URL.Query().Get("source"),
	})
	if err == nil {
		s.log.Info("an image was imported", "image", name, "digest", kept.Digest, "took", time.Since(began))
	}
	return image, err
}

// upload reads a body for as long as it goes on and its sender's key is good, and sums it up.
type upload struct {
	s       *Server
	by      muster.Principal
	from    io.Reader
	control *http.ResponseController
	sum     hash.Hash
}

func (u *upload) Read(p []byte) (int, error) {
	if u.s.stopping.Load() {
		return 0, muster.Errorf(muster.Unavailable, "the server is stopping: import again in a moment")
	}
	if !u.s.registry.Admitted(u.by) {
		return 0, errCallerExpelled
	}
	if err := u.control.SetReadDeadline(time.Now().Add(imageStall)); err != nil {
		return 0, err
	}
	n, err := u.from.Read(p)
	u.sum.Write(p[:n])
	return n, err
}

// check compares what came with what the sender says that it sent, if it does.
func (u *upload) check(r *http.Request) error {
	said := r.Trailer.Get("Content-Digest")
	if said == "" {
		said = r.Header.Get("Content-Digest")
	}
	digest, ok := strings.CutPrefix(said, "sha-256=:")
	if !ok {
		return nil // another kind, which none of our own programs sends
	}
	want, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(digest, ":"))
	if err != nil || !bytes.Equal(want, u.sum.Sum(nil)) {
		return muster.Errorf(muster.Invalid, "the archive did not arrive as it was sent: its checksum is %x: send it again", u.sum.Sum(nil))
	}
	return nil
}

// refuseImage answers with an error; what is not for callers stays in the log.
func (s *Server) refuseImage(w http.ResponseWriter, err error) {
	known, ok := errors.AsType[*muster.Error](err)
	if !ok {
		s.log.Error("a request about an image failed", "err", err)
		known = muster.Errorf(muster.Internal, "the server failed: its log says why")
	}
	w.Header().Set("Connection", "close") // the rest of an upload is not worth reading
	writeError(w, imageStatus(known.Code), known)
}

func imageStatus(code muster.Code) int {
	if code == muster.Limit {
		return http.StatusRequestEntityTooLarge
	}
	return statusOf(code)
}

// getImage sends an archive: GET /images/blobs/DIGEST, in parts if it is asked to.
func (s *Server) getImage() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		digest := r.PathValue("digest")
		f, err := s.images.Open(digest)
		if err != nil {
			s.refuseImage(w, err)
			return
		}
		defer f.Close()
		s.send(w, r, f, digest)
	})
}

func (s *Server) send(w http.ResponseWriter, r *http.Request, f *os.File, digest string) {
	w.Header().Set("Content-Type", "application/zstd")
	w.Header().Set("ETag", `"`+digest+`"`)
	http.ServeContent(&download{ResponseWriter: w, s: s, by: muster.PrincipalOf(r.Context()), control: http.NewResponseController(w)}, r, "", time.Time{}, f)
}

// download writes for as long as the other side reads and its key is good, and until the
// server stops.
type download struct {
	http.ResponseWriter
	s       *Server
	by      muster.Principal
	control *http.ResponseController
}

func (d *download) Write(p []byte) (int, error) {
	if d.s.stopping.Load() {
		return 0, http.ErrServerClosed
	}
	if !d.s.registry.Admitted(d.by) {
		return 0, errCallerExpelled
	}
	if err := d.control.SetWriteDeadline(time.Now().Add(imageStall)); err != nil {
		return 0, err
	}
	return d.ResponseWriter.Write(p)
}

// sweepImages removes, now and then, what no image and no instance needs any more.
func (s *Server) sweepImages(ctx context.Context) error {
	tick := time.NewTicker(imageSweep)
	defer tick.Stop()
	for {
		if s.registry.Ready() == nil {
			removed, err := s.images.Sweep(s.registry.ImageDigests)
			if err != nil {
				s.log.Warn("an archive that nobody needs was not removed; trying again", "err", err)
			}
			for _, digest := range removed {
				s.log.Info("an archive that nobody needs was removed", "digest", digest)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
