package registry

import (
	"context"

	"github.com/muster-cloud/muster"
)

// Image returns the server's image of that name, or nil when there is none.
func (r *Registry) Image(name string) *muster.Image { return r.View().Image(name) }

// Images returns a page of the server's images in order of their name.
func (r *Registry) Images(page muster.PageInput) (*muster.ImageConnection, error) {
	limit, err := page.Limit()
	if err != nil {
		return nil, err
	}
	after, err := parseEdge(page.After)
	if err != nil {
		return nil, err
	}
	v := r.View()
	from := rowsFrom[*muster.Image](v, tableImage, byID, after)
	if after == "" {
		from = v.Images()
	}
	images, info := take(where(from, func(i *muster.Image) bool { return i.Name != after }), limit, after, func(i *muster.Image) string { return i.Name })
	c := &muster.ImageConnection{Edges: make([]*muster.ImageEdge, 0, len(images)), PageInfo: info, Count: func() int { return count(v.Images()) }}
	for _, i := range images {
		c.Edges = append(c.Edges, &muster.ImageEdge{Cursor: edge(i.Name), Node: i})
	}
	return c, nil
}

// PutImage gives an archive that is kept a name. One that the name had before loses it,
// which instances that were launched from it do not notice. Importing the same
// again changes nothing.
func (r *Registry) PutImage(ctx context.Context, in muster.Image) (*muster.Image, int64, error) {
	if err := wholeCluster(ctx); err != nil {
		return nil, 0, err
	}
	if err := muster.CheckName("name", in.Name); err != nil {
		return nil, 0, err
	}
	if err := muster.CheckDigest("digest", in.Digest); err != nil {
		return nil, 0, err
	}
	in.Source = muster.Printable(in.Source, muster.MaxReasonBytes)
	var out *muster.Image
	revision, err := r.mutate(ctx, func(v View, w *Writes) error {
		before := v.Image(in.Name)
		if before != nil && before.Digest == in.Digest {
			out = before
			return nil
		}
		next := in
		next.ImportedAt = stamp(r.opts.Now())
		out = &next
		reason := "imported"
		if before != nil {
			reason = "imported anew"
		}
		w.Image(out, reason)
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return out, revision, nil
}

// RemoveImage takes an image's name away, so that nothing new is launched from it, and
// returns it as it was with how many instances were launched from it and are not
// terminated: its archive is kept until there are none.
func (r *Registry) RemoveImage(ctx context.Context, name string) (out *muster.Image, usedBy int, revision int64, err error) {
	if err := wholeCluster(ctx); err != nil {
		return nil, 0, 0, err
	}
	if err := muster.CheckName("name", name); err != nil {
		return nil, 0, 0, err
	}
	revision, err = r.mutate(ctx, func(v View, w *Writes) error {
		if out = v.Image(name); out == nil {
			return muster.Errorf(muster.NotFound, "there is no image %q: see the list of images", name)
		}
		usedBy = count(where(v.Instances(), func(i *muster.Instance) bool { return i.ImageDigest == out.Digest && i.Status != muster.Terminated }))
		gone := *out
		w.ForgetImage(&gone, "removed")
		return nil
	})
	if err != nil {
		return nil, 0, 0, err
	}
	return out, usedBy, revision, nil
}

// ImageDigests returns the digests of all archives that are needed: of images, and
// of what instances that are not terminated were launched from.
func (r *Registry) ImageDigests() map[string]bool {
	v, needed := r.View(), map[string]bool{}
	for i := range v.Images() {
		needed[i.Digest] = true
	}
	for i := range v.Instances() {
		if i.ImageDigest != "" && i.Status != muster.Terminated {
			needed[i.ImageDigest] = true
		}
	}
	return needed
}

// digestOf is the digest of the server's image of a name at this moment; "" when it has none:
// then it is a node's own that is meant.
func (v View) digestOf(name string) string {
	if image := v.Image(name); image != nil {
		return image.Digest
	}
	return ""
}
