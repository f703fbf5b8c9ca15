package render

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/muster-cloud/muster"
)

// DryRun writes what Once would change, as unified diffs, and changes nothing: no check and
// no reload is run. What Once would refuse is the error.
func (r *Renderer) DryRun(ctx context.Context, w io.Writer) error {
	found, err := r.source.Registrations(ctx, muster.RegistrationFilter{}, false)
	if err != nil {
		return err
	}
	a := AnswerOf(found)
	var problems []error
	for i := range r.targets {
		problems = append(problems, dryRun(w, &output{Target: &r.targets[i]}, a))
	}
	return errors.Join(problems...)
}

func dryRun(w io.Writer, o *output, a *Answer) error {
	path, err := resolve(o.Output)
	if err != nil {
		return cannotWrite(o.Output, err)
	}
	o.spot = &spot{path: path, dir: filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".muster")}
	text, calls, err := o.Content(a)
	if err != nil {
		return err
	}
	present, err := o.spot.present()
	if err != nil {
		return cannotWrite(o.Output, err)
	}
	if !bytes.Equal(present, text) {
		if _, err := w.Write(diff.Diff(o.Output, present, o.Output+" (new)", text)); err != nil {
			return err
		}
	}
	if err := o.spot.readState(); err != nil {
		return cannotWrite(o.Output, err)
	}
	return o.judge(a, len(present) > 0, calls)
}
