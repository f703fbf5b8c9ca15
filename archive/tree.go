package archive

import (
	"archive/tar"
	"fmt"
	"math"
	"path"
	"strings"
	"time"
)

const (
	maxPath = 4095
	maxPart = 255
)

// tree knows the entries so far by their path: what each one is.
type tree map[string]byte

// implied is a directory that has no entry of its own, yet.
const implied byte = 'i'

// add checks an entry and returns it in its canonical form; nil is the root itself.
func (t tree) add(h *tar.Header) (*tar.Header, error) {
	refuse := func(why string, args ...any) (*tar.Header, error) {
		return nil, &Refused{Entry: h.Name, Why: fmt.Sprintf(why, args...)}
	}
	name, why := inside(h.Name)
	if why != "" {
		return refuse("%s", why)
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return refuse("is its root and no directory")
		}
		return nil, nil
	}
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > math.MaxUint32-1 || int64(h.Gid) > math.MaxUint32-1 {
		return refuse("belongs to the user %d and the group %d, which cannot be", h.Uid, h.Gid)
	}
	if why := t.place(name, h.Typeflag); why != "" {
		return refuse("%s", why)
	}
	e := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid,
		ModTime: moment(h.ModTime), Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Size, e.PAXRecords = h.Size, attributes(h.PAXRecords)
	case tar.TypeDir:
		e.Name += "/"
	case tar.TypeSymlink:
		if e.Linkname, why = symlink(name, h.Linkname); why != "" {
			return refuse("%s", why)
		}
		e.Mode = 0o777
	case tar.TypeLink:
		if e.Linkname, why = inside(h.Linkname); why != "" {
			return refuse("is a hard link to %.300q, and that %s", h.Linkname, why)
		}
		if t[e.Linkname] != tar.TypeReg {
			return refuse("is a hard link to %.300q, which is no file that came before it", h.Linkname)
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return refuse("is a device or a pipe: an instance makes its own; pack it without them, such as by tar --exclude='./dev/*'")
	default:
		return refuse("is of the type %q, which is none of a file, a directory or a link: pack it without", string(h.Typeflag))
	}
	return e, nil
}

// place notes an entry at its path, and says why it cannot be there.
func (t tree) place(name string, kind byte) string {
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		switch t[parent] {
		case 0:
			t[parent] = implied
		case implied, tar.TypeDir:
		case tar.TypeSymlink:
			return fmt.Sprintf("lies behind the symbolic link %.300q: pack it under the path that the link leads to", parent)
		default:
			return fmt.Sprintf("lies below %.300q, which is no directory", parent)
		}
	}
	if there := t[name]; there != 0 && (there != implied || kind != tar.TypeDir) {
		return "is there twice: pack it anew, each path once"
	}
	t[name] = kind
	return ""
}

// inside cleans a path of the archive and says why it is none within the tree.
func inside(name string) (clean, why string) {
	switch {
	case name == "":
		return "", "has no name"
	case len(name) > maxPath:
		return "", "has too long a name"
	case strings.ContainsRune(name, 0):
		return "", "has a NUL in its name"
	case strings.HasPrefix(name, "/"):
		return "", "is absolute: pack it from within its root, such as by tar -C ROOT ."
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", "leads out of it by \"..\": pack it from within its root, such as by tar -C ROOT ."
		}
		if len(part) > maxPart {
			return "", "has too long a name"
		}
	}
	return path.Clean(name), ""
}

// symlink says why a link's target cannot be: a relative one has to stay inside.
func symlink(name, target string) (same, why string) {
	switch {
	case target == "":
		return "", "is a symbolic link to nothing"
	case len(target) > maxPath || strings.ContainsRune(target, 0):
		return "", "is a symbolic link to what cannot be a path"
	case strings.HasPrefix(target, "/"):
		return target, ""
	}
	depth := strings.Count(name, "/")
	for part := range strings.SplitSeq(target, "/") {
		switch part {
		case "", ".":
		case "..":
			depth--
		default:
			depth++
		}
		if depth < 0 {
			return "", fmt.Sprintf("is a symbolic link to %.300q, which leads out of it: have it lead to what is inside", target)
		}
	}
	return target, ""
}

// moment is a time as the canonical form has it: whole seconds, not before 1970.
func moment(t time.Time) time.Time { return time.Unix(max(t.Unix(), 0), 0).UTC() }

// xattr is how PAX writes extended attributes.
const xattr = "SCHILY.xattr."

// kept says which extended attributes an image keeps.
func kept(name string) bool {
	return name == "security.capability" || strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

func attributes(records map[string]string) map[string]string {
	var out map[string]string
	for key, value := range records {
		if name, ok := strings.CutPrefix(key, xattr); ok && kept(name) {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}
