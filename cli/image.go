package cli

import (
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster/agent/image"
)

// defaultStateDir is where an agent keeps what it needs.
const defaultStateDir = "/var/lib/muster"

func (a *app) imageCommand() *cobra.Command {
	return group("image", "What instances on this machine can start from", a.imageListCommand(), a.buildMinimalCommand())
}

// imagesIn returns the images of an agent's state directory.
func imagesIn(stateDir string) *image.Store { return image.Open(filepath.Join(stateDir, "images")) }

func stateDirFlag(c *cobra.Command, dir *string) {
	settings(c.Flags(), func(f *pflag.FlagSet) {
		f.StringVar(dir, "state-dir", defaultStateDir, "the agent's `DIRECTORY`, images in it")
	})
}

func (a *app) imageListCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "list", Short: "List the images of this machine", Args: exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			images, err := imagesIn(dir).List()
			if err != nil {
				return err
			}
			if images == nil {
				images = []image.Image{}
			}
			return a.write(images, func(w io.Writer) { printImages(w, images) })
		},
	}
	stateDirFlag(c, &dir)
	return c
}

func printImages(w io.Writer, images []image.Image) {
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

func (a *app) buildMinimalCommand() *cobra.Command {
	var dir, busybox string
	c := &cobra.Command{
		Use: "build-minimal", Short: "Make the image minimal from a static busybox, in about a second",
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			made, err := imagesIn(dir).BuildMinimal(c.Context(), busybox)
			if err != nil {
				return err
			}
			return a.write(made, func(w io.Writer) { printImages(w, []image.Image{made}) })
		},
	}
	stateDirFlag(c, &dir)
	c.Flags().StringVar(&busybox, "busybox", "", "`PATH` of a static busybox; the one in PATH when left out")
	return c
}
