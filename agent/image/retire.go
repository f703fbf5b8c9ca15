package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Retire takes away the pulled images that are not used, by digest: at once when a newer one of
// the same name is here, else once nothing has used it for the time to keep. It also forgets what had
// come of archives that nobody wants any more. It is quick: the function that it returns deletes
// what was taken away.
func (p *Puller) Retire(used map[string]bool) (remove func() error, err error) {
	p.once.Do(p.sweep)
	nothing := func() error { return nil }
	images, err := p.o.Store.Pulled()
	if err != nil {
		return nothing, err
	}
	newest := map[string]time.Time{}
	for _, img := range images {
		if img.Created.After(newest[img.Name]) {
			newest[img.Name] = img.Created
		}
	}
	var trash []string
	now := time.Now()
	for _, img := range images {
		about := filepath.Join(filepath.Dir(img.Path), aboutName)
		info, statErr := os.Stat(about)
		if statErr != nil {
			err = errors.Join(err, statErr)
			continue
		}
		idle := now.Sub(info.ModTime()) // it is touched while it is used
		if used[img.Digest] || p.busy(img.Digest) {
			if idle > min(time.Minute, p.o.Keep/2) {
				err = errors.Join(err, os.Chtimes(about, now, now))
			}
			continue
		}
		if !img.Created.Before(newest[img.Name]) && idle < p.o.Keep {
			continue
		}
		gone := filepath.Join(p.o.Store.pulled(), gonePrefix+hexOf(img.Digest))
		if renameErr := os.Rename(filepath.Dir(img.Path), gone); renameErr != nil {
			err = errors.Join(err, renameErr)
			continue
		}
		p.o.Logger.Info("an image that nothing uses was removed", "image", img.Name, "digest", img.Digest)
		trash = append(trash, gone)
	}
	err = errors.Join(err, p.forgetParts(used))
	return func() error {
		var err error
		for _, path := range trash {
			err = errors.Join(err, os.RemoveAll(path))
		}
		return err
	}, err
}

// busy reports whether somebody pulls an image, or has just asked for it.
func (p *Puller) busy(digest string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs[digest] != nil
}

func (p *Puller) forgetParts(used map[string]bool) error {
	parts, err := filepath.Glob(filepath.Join(p.o.Store.pulled(), partPrefix+"*"))
	for _, path := range parts {
		digest := hexPrefix + strings.TrimPrefix(filepath.Base(path), partPrefix)
		if used[digest] || p.busy(digest) {
			continue
		}
		if removeErr := os.Remove(path); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}
