package render

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
)

// output is a target in work.
type output struct {
	*Target
	spot    *spot
	begun   bool  // it was rendered, or found unchanged, once
	calls   Calls // of the text that was placed
	changed bool  // it was placed, and awaits its reload
}

// render brings a target's file to its place, checked, and leaves its reload to the caller
// if it changed.
func (o *output) render(ctx context.Context, a *Answer, log *slog.Logger) error {
	o.changed = false
	text, calls, err := o.Content(a)
	if err != nil {
		return err
	}
	present, err := o.spot.present()
	if err != nil {
		return cannotWrite(o.Output, err)
	}
	if err := o.judge(a, len(present) > 0, calls); err != nil {
		return err
	}
	if present != nil && bytes.Equal(text, present) && !o.spot.Unfinished {
		return o.unchanged(calls)
	}
	if err := o.bring(ctx, text, log); err != nil {
		o.spot.drop()
		return err
	}
	o.calls, o.changed = calls, true
	return nil
}

// judge refuses a render over what is there.
func (o *output) judge(a *Answer, there bool, calls Calls) error {
	if !there {
		return nil
	}
	if !o.begun && !a.Complete && !o.AllowIncomplete {
		return failure(Refused, o.Output, nil,
			"what others registered is known only as of %s, the feed cannot be reached; it is left as it was: give --allow-incomplete if that will do",
			a.AsOf.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	return o.guard(o.spot.Entries, calls)
}

// unchanged remembers what the text in place is from now.
func (o *output) unchanged(calls Calls) error {
	o.begun = true
	if equal(o.spot.Entries, calls) {
		return nil
	}
	if err := o.spot.save(state{Entries: calls}); err != nil {
		return cannotWrite(o.Output, err)
	}
	return nil
}

// bring writes, checks and places a text.
func (o *output) bring(ctx context.Context, text []byte, log *slog.Logger) error {
	if err := o.spot.prepare(text); err != nil {
		return cannotWrite(o.Output, err)
	}
	if o.Check != "" {
		placed, said, err := o.check(ctx)
		if err != nil {
			return err
		}
		log.Info("the check has passed", withOutput(said, "file", o.Output)...)
		if placed {
			return nil
		}
	}
	if err := o.spot.place(); err != nil {
		return cannotWrite(o.Output, err)
	}
	return nil
}

// undone puts back what was there, and adds to problem what went wrong at that.
func (o *output) undone(problem error) error {
	if err := o.spot.undo(); err != nil {
		return errors.Join(problem, failure(WriteFailed, o.Output, err, "what was there before cannot be put back: %s; look at it", err))
	}
	return problem
}

// finish keeps what was placed.
func (o *output) finish() error {
	o.changed, o.begun = false, true
	if err := o.spot.finish(o.calls); err != nil {
		return cannotWrite(o.Output, err)
	}
	return nil
}
