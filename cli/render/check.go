package render

import (
	"context"
	"strings"
	"time"
)

// shadowLine mounts the new text ($1) over the file ($2) for the line ($3) alone.
const shadowLine = `mount --bind "$1" "$2" && exec /bin/sh -c "$3"`

// check has a target's command look at the prepared text. In the end that is still
// prepared, or is in place if placed.
func (o *output) check(ctx context.Context) (placed bool, said string, err error) {
	if strings.Contains(o.Check, "{}") {
		line := strings.ReplaceAll(o.Check, "{}", quoted(o.spot.candidate()))
		said, err = shell(line, o.spot.candidate(), o.timeout()).run(ctx)
		return false, said, o.checked(said, err)
	}
	if o.canShadow(ctx) {
		said, err = o.shadow(o.Check, o.timeout()).run(ctx)
		return false, said, o.checked(said, err)
	}
	if err := o.spot.place(); err != nil {
		return false, "", cannotWrite(o.Output, err)
	}
	said, err = shell(o.Check, o.spot.path, o.timeout()).run(ctx)
	if err == nil {
		return true, said, nil
	}
	return false, said, o.undone(o.checked(said, err))
}

func (o *output) checked(said string, err error) error {
	if err == nil {
		return nil
	}
	problem := failure(CheckFailed, o.Output, err, "the new text does not pass its check, %q: %s; it is left as it was", o.Check, err)
	problem.Output = said
	return problem
}

// shadow runs a line that finds the new text in the file's place, where everybody else
// finds what was there.
func (o *output) shadow(line string, timeout time.Duration) command {
	argv := []string{"/bin/sh", "-c", shadowLine, "muster", o.spot.candidate(), o.spot.path, line}
	return command{argv: argv, file: o.spot.path, timeout: timeout, mounts: true}
}

// canShadow reports whether this process may, and there is something to mount over.
func (o *output) canShadow(ctx context.Context) bool {
	_, err := o.shadow(":", o.timeout()).run(ctx)
	return err == nil
}
