package muster

import (
	"strings"
	"time"
)

// Image is a base image that the server keeps: a name for an archive of a tree.
type Image struct {
	Name string `gorm:"column:name;primaryKey" json:"name"`
	// Digest is that of the archive in its canonical form, "sha256:" and 64 hex digits.
	Digest string `gorm:"column:digest" json:"digest"`
	// Size is that of the archive as it is kept and sent, in bytes.
	Size int64 `gorm:"column:size" json:"size"`
	// UnpackedSize is that of all its files, in bytes.
	UnpackedSize int64 `gorm:"column:unpacked_size" json:"unpackedSize"`
	Entries      int   `gorm:"column:entries" json:"entries"`
	// Boot says that it has a systemd, which instances of it boot.
	Boot bool `gorm:"column:boot" json:"boot"`
	// Source is what it was imported from, for people.
	Source     string    `gorm:"column:source" json:"source"`
	ImportedAt time.Time `gorm:"column:imported_at" json:"importedAt"`
	// Revision is that of its newest change.
	Revision int64 `gorm:"column:revision" json:"revision"`
}

// TableName is the table that holds images.
func (Image) TableName() string { return "images" }

// ObjectID is an image's id in the change log: no other object has a slash in its own.
func (i *Image) ObjectID() string { return "image/" + i.Name }

// DefaultImage is what instances are launched from when nothing is said: a busybox.
const DefaultImage = "minimal"

// digestPrefix names the only kind of digest that there is.
const digestPrefix = "sha256:"

// CheckDigest refuses what is not "sha256:" and 64 small hex digits.
func CheckDigest(field, s string) error {
	digits, ok := strings.CutPrefix(s, digestPrefix)
	if !ok || len(digits) != 64 || strings.Trim(digits, "0123456789abcdef") != "" {
		return InvalidField(field, "%.100q is no digest; give sha256: and 64 hex digits, as the list of images shows it", s)
	}
	return nil
}

func checkDigestIfAny(field, s string) error {
	if s == "" {
		return nil
	}
	return CheckDigest(field, s)
}

// shortDigest is how many hex digits of a digest a list of images shows.
const shortDigest = 12

// ImageRef names an image as a node lists it: by its name, and when it is one of the server's
// by the first digits of its digest too, such as debian@3f9a0c1d2e3b. The digest is valid, or empty.
func ImageRef(name, digest string) string {
	if digest == "" {
		return name
	}
	return name + "@" + ShortDigest(digest)
}

// ShortDigest is the first digits of a valid digest.
func ShortDigest(digest string) string {
	return strings.TrimPrefix(digest, digestPrefix)[:shortDigest]
}

// HasImage reports whether a node has an image: one of its own by name, one of
// the server's by digest, whatever its name was when it came.
func (n *Node) HasImage(name, digest string) bool {
	for _, ref := range n.Images {
		if digest == "" && ref == name {
			return true
		}
		if _, short, ok := strings.Cut(ref, "@"); ok && digest != "" && short == ShortDigest(digest) {
			return true
		}
	}
	return false
}

// checkImageRef refuses what ImageRef would not make.
func checkImageRef(field, s string) error {
	name, digest, ok := strings.Cut(s, "@")
	if ok && (len(digest) != shortDigest || strings.Trim(digest, "0123456789abcdef") != "") {
		return InvalidField(field, "%.100q has no digest of %d hex digits after the @", s, shortDigest)
	}
	return CheckName(field, name)
}

// ImageEdge is an image on a page.
type ImageEdge struct {
	Cursor string
	Node   *Image
}

// ImageConnection is a page of images. Count counts all, when asked.
type ImageConnection struct {
	Edges    []*ImageEdge
	PageInfo *PageInfo
	Count    func() int
}

// TotalCount is how many there are in all.
func (c *ImageConnection) TotalCount() int { return c.Count() }
