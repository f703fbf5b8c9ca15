package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/archive"
)

func file(name, text string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}
}

func dir(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }

func link(kind byte, name, target string) tar.Header {
	return tar.Header{Typeflag: kind, Name: name, Linkname: target, Mode: 0o777}
}

// pack makes a tar file of entries; a file's content is x's.
func pack(t testing.TB, entries ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, strings.Repeat("x", int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func TestRefuses(t *testing.T) {
	fits := archive.Limits{Unpacked: 1000, Entries: 5}
	for name, c := range map[string]struct {
		entries []tar.Header
		entry   string // that the error names
		message string
		large   bool
	}{
		"a path that climbs":               {[]tar.Header{file("../etc/passwd", "x")}, "../etc/passwd", "leads out of it", false},
		"a path that climbs in the middle": {[]tar.Header{file("a/../../b", "x")}, "a/../../b", "leads out of it", false},
		"an absolute path":                 {[]tar.Header{file("/etc/passwd", "x")}, "/etc/passwd", "is absolute", false},
		"an absolute hard link":            {[]tar.Header{link(tar.TypeLink, "a", "/etc/shadow")}, "a", "is absolute", false},
		"a hard link that climbs":          {[]tar.Header{link(tar.TypeLink, "d/a", "../../etc/shadow")}, "d/a", "leads out", false},
		"a hard link to nothing":           {[]tar.Header{link(tar.TypeLink, "a", "b")}, "a", "no file that came before it", false},
		"a hard link to a symbolic one":    {[]tar.Header{link(tar.TypeSymlink, "b", "/etc"), link(tar.TypeLink, "a", "b")}, "a", "no file that came before it", false},
		"a symbolic link that climbs":      {[]tar.Header{link(tar.TypeSymlink, "d/a", "../../etc")}, "d/a", "leads out of it", false},
		"an empty symbolic link":           {[]tar.Header{link(tar.TypeSymlink, "a", "")}, "a", "to nothing", false},
		"a file behind a symbolic link":    {[]tar.Header{link(tar.TypeSymlink, "a", "/etc"), file("a/passwd", "x")}, "a/passwd", "behind the symbolic link \"a\"", false},
		"a file deep behind one":           {[]tar.Header{link(tar.TypeSymlink, "a", "b"), file("a/c/d", "x")}, "a/c/d", "behind the symbolic link \"a\"", false},
		"a file below a file":              {[]tar.Header{file("a", "x"), file("a/b", "x")}, "a/b", "no directory", false},
		"a link in place of a directory":   {[]tar.Header{file("a/b", "x"), link(tar.TypeSymlink, "a", "/etc")}, "a", "is there twice", false},
		"an entry twice":                   {[]tar.Header{file("a", "x"), file("./a", "y")}, "./a", "is there twice", false},
		"a directory twice":                {[]tar.Header{dir("a"), dir("a")}, "a", "is there twice", false},
		"a character device":               {[]tar.Header{{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3}}, "dev/null", "is a device", false},
		"a block device":                   {[]tar.Header{{Typeflag: tar.TypeBlock, Name: "dev/sda"}}, "dev/sda", "is a device", false},
		"a pipe":                           {[]tar.Header{{Typeflag: tar.TypeFifo, Name: "p"}}, "p", "is a device or a pipe", false},
		"a root that is a file":            {[]tar.Header{file("./.", "x")}, "./.", "is its root", false},
		"more than may be unpacked":        {[]tar.Header{file("a", strings.Repeat("x", 600)), file("b", strings.Repeat("x", 600))}, "b", "larger than 1000 bytes", true},
		"more entries than may be":         {[]tar.Header{dir("1"), dir("2"), dir("3"), dir("4"), dir("5"), dir("6")}, "6", "one too many", true},
		"nothing":                          {nil, "", "no entries", false},
	} {
		t.Run(name, func(t *testing.T) {
			data := pack(t, c.entries...)
			_, canonical := archive.Canonical(t.Context(), io.Discard, bytes.NewReader(data), fits)
			to := filepath.Join(t.TempDir(), "tree")
			if err := os.Mkdir(to, 0o755); err != nil {
				t.Fatal(err)
			}
			_, unpacked := archive.Unpack(t.Context(), to, bytes.NewReader(data), fits)
			for _, err := range []error{canonical, unpacked} {
				refused, ok := errors.AsType[*archive.Refused](err)
				if !ok || refused.Entry != c.entry || refused.Large != c.large || !strings.Contains(err.Error(), c.message) {
					t.Errorf("%v, want one about %q that says %q", err, c.entry, c.message)
				}
			}
			around, err := os.ReadDir(filepath.Dir(to))
			if err != nil || len(around) != 1 {
				t.Errorf("beside the tree there is %v, %v", around, err)
			}
		})
	}
}

// zeros gives so many of them.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// bomb is a compressed tar file with a file of so many zeros.
func bomb(t *testing.T, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	zipped, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(zipped)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: size, Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, io.LimitReader(zeros{}, size)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRefusesBombs(t *testing.T) {
	small := bomb(t, 200<<20)
	for name, c := range map[string]struct {
		data    []byte
		limits  archive.Limits
		message string
	}{
		"by its ratio":          {small, archive.Limits{}, "more than 100 times its size"},
		"by what becomes of it": {plainZeros(t, 80<<20), archive.Limits{}, "more than 100 times its size"},
		"by its holes":          {holes(t, 80<<20), archive.Limits{}, "or raise the limit, --max-image-ratio"},
		"by its size":           {pack(t, file("a", strings.Repeat("x", 4096))), archive.Limits{Upload: 1024}, "more than 1024 bytes"},
		"by the size it claims": {claim(t, 10<<30), archive.Limits{}, "larger than 8589934592 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			written := &counted{}
			_, err := archive.Canonical(t.Context(), written, bytes.NewReader(c.data), c.limits)
			refused, ok := errors.AsType[*archive.Refused](err)
			if !ok || !refused.Large || !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v, want one that says %q", err, c.message)
			}
			if written.n > 1<<20 {
				t.Errorf("%d bytes were written before it was refused", written.n)
			}
		})
	}
}

// plainZeros is a tar file, not compressed, with a file of so many zeros.
func plainZeros(t *testing.T, size int64) []byte {
	t.Helper()
	unzipped, err := zstd.NewReader(bytes.NewReader(bomb(t, size)))
	if err != nil {
		t.Fatal(err)
	}
	defer unzipped.Close()
	plain, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

// holes is a tar file with a file of which it lists only that there is nothing in it.
func holes(t *testing.T, size int64) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "holes"), nil, 0o600), os.Truncate(filepath.Join(dir, "holes"), size)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "tar", "--sparse", "-C", dir, "-c", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

type counted struct{ n int }

func (c *counted) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

// claim is the beginning of a tar file with a file of a size.
func claim(t *testing.T, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: size, Format: tar.FormatPAX}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestRefusesWhatIsDamaged(t *testing.T) {
	whole := pack(t, dir("a"), file("a/b", strings.Repeat("x", 5000)))
	for name, c := range map[string]struct {
		data    []byte
		message string
	}{
		"an empty file":             {nil, "is empty"},
		"text":                      {[]byte(strings.Repeat("hello world\n", 100)), "no tar file"},
		"half of a tar file":        {whole[:3000], "ends in the middle"},
		"half of a gzip":            {gzipped(t, whole)[:60], "ends in the middle"},
		"half of a zstd":            {zstded(t, whole)[:60], "ends in the middle"},
		"a gzip with a wrong sum":   {flipped(gzipped(t, whole), 6), "damaged"},
		"an xz":                     {[]byte("\xfd7zXZ\x00……"), "compressed by xz"},
		"a zstd of something else":  {zstded(t, []byte("hello")), "ends in the middle"},
		"a header with a wrong sum": {flipped(whole, len(whole)-600), "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a header with a wrong sum" {
				c.data = append([]byte{'b'}, whole[1:]...)
			}
			_, err := archive.Canonical(t.Context(), io.Discard, bytes.NewReader(c.data), archive.Limits{})
			if _, ok := errors.AsType[*archive.Refused](err); !ok || !strings.Contains(err.Error(), c.message) {
				t.Errorf("%v, want one that says %q", err, c.message)
			}
		})
	}
}

// flipped is data with a bit changed so far from its end.
func flipped(data []byte, fromEnd int) []byte {
	out := bytes.Clone(data)
	out[len(out)-fromEnd] ^= 1
	return out
}

func TestErrorsOfOthersAreNotTheArchives(t *testing.T) {
	broken := errors.New("the cable is cut")
	data := pack(t, file("a", strings.Repeat("x", 100_000)))
	from := io.MultiReader(bytes.NewReader(data[:50_000]), errReader{broken})
	_, err := archive.Canonical(t.Context(), io.Discard, from, archive.Limits{})
	if _, blamed := errors.AsType[*archive.Refused](err); blamed || !errors.Is(err, broken) {
		t.Errorf("a broken source gives %v", err)
	}
	random := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	data = pack(t, file("a", string(random)))
	_, err = archive.Canonical(t.Context(), errWriter{syscall.ENOSPC}, bytes.NewReader(data), archive.Limits{})
	if _, blamed := errors.AsType[*archive.Refused](err); blamed || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk gives %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

type errWriter struct{ err error }

func (w errWriter) Write([]byte) (int, error) { return 0, w.err }

// grow makes a tree with everything that an image may have.
func grow(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	at := time.Unix(1_700_000_000, 123)
	for _, name := range []string{"usr/lib/systemd", "tmp", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, m := range map[string]uint32{"usr/lib/systemd/systemd": 0o755, "su": 0o4755, "secret": 0o600} {
		path := filepath.Join(root, name)
		if err := errors.Join(os.WriteFile(path, []byte(name), 0o600), os.Chown(path, 1000, 50), syscall.Chmod(path, m), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	capability := []byte("\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	err := errors.Join(
		unix.Setxattr(filepath.Join(root, "secret"), "security.capability", capability, 0),
		unix.Setxattr(filepath.Join(root, "secret"), "trusted.overlay.opaque", []byte("y"), 0),
		os.Link(filepath.Join(root, "su"), filepath.Join(root, "sudo")),
		os.Symlink("/etc/alternatives/x", filepath.Join(root, "absolute")),
		os.Symlink("../su", filepath.Join(root, "usr/relative")),
		syscall.Chmod(filepath.Join(root, "tmp"), 0o1777),
		unix.Mknod(filepath.Join(root, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mkfifo(filepath.Join(root, "pipe"), 0o600),
		os.Chtimes(filepath.Join(root, "usr"), at, at),
	)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func TestRoundTrip(t *testing.T) {
	root := grow(t)
	var packed, again, canonical bytes.Buffer
	left, err := archive.Pack(t.Context(), &packed, root)
	if err != nil || left != 2 {
		t.Fatalf("%d were left out, %v; want the device and the pipe", left, err)
	}
	if _, err := archive.Pack(t.Context(), &again, root); err != nil || !bytes.Equal(packed.Bytes(), again.Bytes()) {
		t.Errorf("packed twice the same tree differs (%v)", err)
	}
	made, err := archive.Canonical(t.Context(), &canonical, &packed, archive.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if !made.Boot || made.Entries != 11 || made.Unpacked != int64(len("usr/lib/systemd/systemd")+len("su")+len("secret")) {
		t.Errorf("made %+v", made)
	}
	to := t.TempDir()
	got, err := archive.Unpack(t.Context(), to, bytes.NewReader(canonical.Bytes()), archive.Limits{})
	if err != nil || got != made {
		t.Fatalf("unpacked %+v, %v, want %+v", got, err, made)
	}
	check(t, root, to)
}

// check compares what was unpacked with what was packed.
func check(t *testing.T, root, to string) {
	t.Helper()
	for _, name := range []string{"usr", "usr/lib/systemd/systemd", "su", "secret", "tmp", "dev"} {
		var want, have unix.Stat_t
		if err := errors.Join(unix.Lstat(filepath.Join(root, name), &want), unix.Lstat(filepath.Join(to, name), &have)); err != nil {
			t.Fatal(err)
		}
		if want.Mode != have.Mode || want.Uid != have.Uid || want.Gid != have.Gid || want.Mtim.Sec != have.Mtim.Sec || want.Nlink != have.Nlink {
			t.Errorf("%s: %+v became %+v", name, want, have)
		}
	}
	for name, want := range map[string]string{"absolute": "/etc/alternatives/x", "usr/relative": "../su"} {
		if got, err := os.Readlink(filepath.Join(to, name)); err != nil || got != want {
			t.Errorf("%s leads to %q, %v", name, got, err)
		}
	}
	value := make([]byte, 100)
	if n, err := unix.Getxattr(filepath.Join(to, "secret"), "security.capability", value); err != nil || n != 20 {
		t.Errorf("its capability has %d bytes, %v", n, err)
	}
	if _, err := unix.Getxattr(filepath.Join(to, "secret"), "trusted.overlay.opaque", value); !errors.Is(err, unix.ENODATA) {
		t.Errorf("the overlay's attribute: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(to, "dev/null")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the device: %v", err)
	}
}

func TestCanonical_IsTheSameHoweverItCame(t *testing.T) {
	plain := pack(t, dir("."), dir("./a"), file("./a/b", "hello"), link(tar.TypeSymlink, "./c", "/a/b"))
	digests := map[string]string{}
	for name, data := range map[string][]byte{
		"plain": plain, "gzip": gzipped(t, plain), "zstd": zstded(t, plain),
		"without dots": pack(t, dir("a/"), file("a/b", "hello"), link(tar.TypeSymlink, "c", "/a/b")),
	} {
		got, err := archive.Canonical(t.Context(), io.Discard, bytes.NewReader(data), archive.Limits{})
		if err != nil {
			t.Fatal(name, err)
		}
		digests[got.Digest] += " " + name
	}
	if len(digests) != 1 {
		t.Errorf("the same tree has the digests %v", digests)
	}
}

func TestUnpacksWhatTarMakes(t *testing.T) {
	root := grow(t)
	holes, err := os.Create(filepath.Join(root, "holes"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = holes.WriteAt([]byte("end"), 1<<20)
	if err := errors.Join(err, holes.Close(), os.Link(holes.Name(), filepath.Join(root, "linked"))); err != nil {
		t.Fatal(err)
	}
	for name, flags := range map[string][]string{
		"gnu":        {"--format=gnu"},
		"pax":        {"--format=pax", "--xattrs", "--xattrs-include=*"},
		"gzip":       {"--gzip"},
		"sparse":     {"--format=gnu", "--sparse"},
		"sparse pax": {"--format=pax", "--sparse"},
	} {
		t.Run(name, func(t *testing.T) {
			made := filepath.Join(t.TempDir(), "image.tar")
			args := append(flags, "--exclude=./dev/*", "--exclude=./pipe", "-C", root, "-cf", made, ".")
			if out, err := exec.CommandContext(t.Context(), "tar", args...).CombinedOutput(); err != nil {
				t.Fatalf("tar: %v: %s", err, out)
			}
			f, err := os.Open(made)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			to := t.TempDir()
			got, err := archive.Unpack(t.Context(), to, f, archive.Limits{})
			if err != nil || !got.Boot || got.Entries != 13 {
				t.Errorf("unpacked %+v, %v", got, err)
			}
			if text, err := os.ReadFile(filepath.Join(to, "linked")); err != nil || len(text) != 1<<20+3 || strings.Trim(string(text), "\x00") != "end" {
				t.Errorf("a file with holes has %d bytes, %v", len(text), err)
			}
		})
	}
}

func FuzzCanonical(f *testing.F) {
	f.Add(pack(f, dir("a"), file("a/b", "hello"), link(tar.TypeLink, "c", "a/b"), link(tar.TypeSymlink, "d", "a")))
	f.Add(pack(f, file("../x", "y")))
	f.Add([]byte("\x1f\x8b\x08"))
	limits := archive.Limits{Upload: 1 << 20, Unpacked: 1 << 20, Entries: 1000}
	f.Fuzz(func(t *testing.T, data []byte) {
		var canonical bytes.Buffer
		made, err := archive.Canonical(t.Context(), &canonical, bytes.NewReader(data), limits)
		if err != nil {
			if _, ok := errors.AsType[*archive.Refused](err); !ok {
				t.Fatalf("an error that is not the archive's: %v", err)
			}
			return
		}
		again, err := archive.Canonical(t.Context(), io.Discard, bytes.NewReader(canonical.Bytes()), archive.Limits{})
		if err != nil || again != made {
			t.Fatalf("the canonical form of a canonical form is %+v, %v, not %+v", again, err, made)
		}
		parent := t.TempDir()
		to := filepath.Join(parent, "tree")
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		got, err := archive.Unpack(t.Context(), to, bytes.NewReader(canonical.Bytes()), archive.Limits{})
		if err != nil || got.Digest != made.Digest {
			t.Fatalf("unpacked %+v, %v, want %+v", got, err, made)
		}
		if around, err := os.ReadDir(parent); err != nil || len(around) != 1 {
			t.Fatalf("beside the tree there is %v, %v", around, err)
		}
	})
}
