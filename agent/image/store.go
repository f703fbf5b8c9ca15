package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// Image is a base image.
type Image struct {
	Name string `json:"name"`
	// Digest is that of the server's image that it is; empty: it is the node's own.
	Digest string `json:"digest,omitempty"`
	// Path is its root directory.
	Path string `json:"-"`
	// Boot says that it has a systemd to boot as its init.
	Boot bool `json:"-"`
	// Init is the path inside of an init that is not systemd; empty: none.
	Init string `json:"-"`
	// Source says what it was made from; empty when somebody put it there.
	Source string `json:"source"`
	// Created is zero when somebody put it there.
	Created time.Time `json:"created"`
}

// Store is a directory of images: NAME is the root of one of the node's own, NAME.json its
// metadata; those pulled from a server are kept by digest beside them.
type Store struct {
	dir string
}

// Open returns the store in a directory, which need not exist yet.
func Open(dir string) *Store { return &Store{dir: dir} }

// List returns the images, sorted by name. What is being made is not among them.
func (s *Store) List() ([]Image, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var images []Image
	for _, entry := range entries {
		if !entry.IsDir() || strings.HasSuffix(entry.Name(), ".json") || muster.CheckName("image", entry.Name()) != nil {
			continue
		}
		img, err := s.Find(entry.Name())
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	slices.SortFunc(images, func(a, b Image) int { return strings.Compare(a.Name, b.Name) })
	return images, nil
}

// Path returns the root directory of an image; ErrNoImage when there is none of that name.
func (s *Store) Path(name string) (string, error) {
	img, err := s.Find(name)
	return img.Path, err
}

// Find returns an image; ErrNoImage when there is none of that name.
func (s *Store) Find(name string) (Image, error) {
	if err := muster.CheckName("image", name); err != nil {
		return Image{}, err
	}
	img := Image{Name: name, Path: filepath.Join(s.dir, name)}
	info, err := os.Stat(img.Path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.IsDir() || strings.HasSuffix(name, ".json")) {
		return Image{}, fmt.Errorf("%w: %s is not in %s", driver.ErrNoImage, name, s.dir)
	}
	if err != nil {
		return Image{}, fmt.Errorf("image %s: %w", name, err)
	}
	if err := s.describe(&img); err != nil {
		return Image{}, err
	}
	img.Digest = "" // it is what somebody put there, whatever that says
	img.look()
	return img, nil
}

// look finds out what the image starts with.
func (img *Image) look() {
	img.Boot = exists(img.Path, "usr/lib/systemd/systemd") || exists(img.Path, "lib/systemd/systemd")
	if !img.Boot && exists(img.Path, "sbin/init") {
		img.Init = "/sbin/init"
	}
}

// describe reads the metadata file, which need not be there.
func (s *Store) describe(img *Image) error {
	text, err := os.ReadFile(s.metadata(img.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, img)
	}
	if err != nil {
		return fmt.Errorf("metadata of image %s: %w", img.Name, err)
	}
	img.Name = filepath.Base(img.Path)
	return nil
}

func (s *Store) metadata(name string) string { return filepath.Join(s.dir, name+".json") }

// publish makes a finished directory an image, unless there is one of that name.
func (s *Store) publish(tmp string, img Image) (Image, error) {
	text, err := json.MarshalIndent(img, "", "  ")
	if err != nil {
		return Image{}, err
	}
	img.Path = filepath.Join(s.dir, img.Name)
	if err := os.Rename(tmp, img.Path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = alreadyThere(img)
		}
		return Image{}, err
	}
	if err := renameio.WriteFile(s.metadata(img.Name), append(text, '\n'), 0o644); err != nil {
		return Image{}, fmt.Errorf("metadata of image %s: %w", img.Name, err)
	}
	return s.Find(img.Name)
}

func alreadyThere(img Image) error {
	return muster.Errorf(muster.AlreadyExists, "image %s is there already, in %s; images are never changed: remove it first once no instance uses it", img.Name, img.Path)
}

// exists looks inside a root without following links out of it.
func exists(root, path string) bool {
	dir, err := os.OpenRoot(root)
	if err != nil {
		return false
	}
	defer dir.Close()
	_, err = dir.Lstat(path)
	return err == nil
}
