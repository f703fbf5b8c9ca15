package cli

import (
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/archive"
	"github.com/muster-cloud/muster/client"
)

// defaultStateDir is where an agent keeps what it needs.
const defaultStateDir = "/var/lib/muster"

func (a *app) imageCommand() *cobra.Command {
	return group("image", "What instances start from", a.imageImportCommand(), a.imageListCommand(), a.imageRemoveCommand(), a.buildMinimalCommand())
}

// archiveFlags declares the limits of images, which server and agent share.
func archiveFlags(f *pflag.FlagSet, l *archive.Limits) {
	*l = l.WithDefaults()
	f.Int64Var(&l.Upload, "max-image-upload", l.Upload, "bytes of an image's archive")
	f.Int64Var(&l.Unpacked, "max-image-size", l.Unpacked, "bytes of an image's files")
	f.IntVar(&l.Entries, "max-image-entries", l.Entries, "files, directories and links of an image")
	f.IntVar(&l.Ratio, "max-image-ratio", l.Ratio, "bytes that each byte of an archive may unpack to")
}

// imagesIn returns the images of an agent's state directory.
func imagesIn(stateDir string) *image.Store { return image.Open(filepath.Join(stateDir, "images")) }

func stateDirFlag(c *cobra.Command, dir *string) {
	settings(c.Flags(), func(f *pflag.FlagSet) {
		f.StringVar(dir, "state-dir", defaultStateDir, "the agent's `DIRECTORY`, images in it")
	})
}

const imageListLong = `List the server's images. Any node can run them: it gets what it lacks. With
--local, list those in this machine's state directory instead.`

func (a *app) imageListCommand() *cobra.Command {
	var dir string
	var local bool
	c := &cobra.Command{
		Use: "list", Short: "List the images", Long: imageListLong, Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if local {
				return a.listLocalImages(dir)
			}
			api, err := a.connect()
			if err != nil {
				return err
			}
			images, err := collect(api.AllImages(c.Context()))
			if err != nil {
				return err
			}
			if len(images) == 0 {
				a.say("the server has no image; those that nodes have of their own are in muster node list")
			}
			return a.write(images, func(w io.Writer) { printImages(w, images) })
		},
	}
	c.Flags().BoolVar(&local, "local", false, "those in this machine's state directory")
	stateDirFlag(c, &dir)
	return c
}

func printImages(w io.Writer, images []*client.Image) {
	t := &table{}
	t.add("NAME", "DIGEST", "SIZE", "UNPACKED", "BOOTS", "IMPORTED", "SOURCE")
	for _, i := range images {
		boots := "no"
		if i.Boot {
			boots = "yes"
		}
		t.add(i.Name, shortDigest(i.Digest), size(i.Size), size(i.UnpackedSize), boots, i.ImportedAt.Format(time.RFC3339), i.Source)
	}
	t.print(w)
}

// shortDigest is how much of a digest a line has room for; nodes list as much.
func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// imageText is the image that an instance started from: of one of the server's the version too.
func imageText(name, digest string) string {
	if digest == "" {
		return name
	}
	return name + " (" + shortDigest(digest) + ")"
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return strconv.FormatInt(n, 10) + " B"
	case n < 1<<20:
		return strconv.FormatInt(n>>10, 10) + " KiB"
	}
	return strconv.FormatInt(n>>20, 10) + " MiB"
}

func (a *app) listLocalImages(dir string) error {
	images, err := imagesIn(dir).List()
	if err != nil {
		return err
	}
	if images == nil {
		images = []image.Image{}
	}
	return a.write(images, func(w io.Writer) { printLocalImages(w, images) })
}

func printLocalImages(w io.Writer, images []image.Image) {
	t := &table{}
	t.add("NAME", "MADE FROM", "CREATED", "PATH")
	for _, i := range images {
		created := ""
		if !i.Created.IsZero() {
			created = i.Created.Format(time.RFC3339)
		}
		t.add(i.Name, i.Source, created, i.Path)
	}
	t.print(w)
}

const imageRemoveLong = `Remove an image from the server: nothing new can be launched from it. What was
launched from it runs on, can be stopped and started, and its archive and the nodes'
copies are kept until the last such instance is terminated.`

func (a *app) imageRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "remove IMAGE", Short: "Remove an image from the server", Long: imageRemoveLong, Args: exactly(1, "the name of an image"),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			removed, err := api.RemoveImage(c.Context(), args[0])
			if err != nil {
				return err
			}
			if removed.UsedBy > 0 {
				a.say("%s started from it; its archive is kept until none is left", counted(removed.UsedBy, "instance"))
			}
			return a.write(removed, func(w io.Writer) { printImages(w, []*client.Image{removed.Image}) })
		},
	}
}

func (a *app) buildMinimalCommand() *cobra.Command {
	var dir, busybox string
	c := &cobra.Command{
		Use: "build-minimal", Short: "Make the image minimal of this machine's own from a static busybox, in about a second",
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			made, err := imagesIn(dir).BuildMinimal(c.Context(), busybox)
			if err != nil {
				return err
			}
			return a.write(made, func(w io.Writer) { printLocalImages(w, []image.Image{made}) })
		},
	}
	stateDirFlag(c, &dir)
	c.Flags().StringVar(&busybox, "busybox", "", "`PATH` of a static busybox; the one in PATH when left out")
	return c
}
