package render

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/muster-cloud/muster"
)

// The defaults of the pace.
const (
	DefaultQuiet   = 500 * time.Millisecond
	DefaultLongest = 5 * time.Second
)

// Options are a renderer's settings.
type Options struct {
	Quiet       time.Duration // how long nothing may change before files follow; default DefaultQuiet
	Longest     time.Duration // how long a change waits at most while others keep coming; default DefaultLongest
	MetricsFile string        // for the textfile collector of a node exporter; default none
	Log         *slog.Logger  // default slog.Default
}

// Renderer keeps files.
type Renderer struct {
	source  Source
	targets []Target
	opts    Options
	metrics *metrics

	outputs []*output
	whole   bool // an answer was complete once
}

// New returns a renderer, or what is wrong with its targets.
func New(source Source, targets []Target, o Options) (*Renderer, error) {
	if err := validate(targets); err != nil {
		return nil, err
	}
	if o.Quiet < 0 || o.Longest < 0 {
		return nil, muster.InvalidField("quiet", "a time to wait is not negative; give one such as 500ms")
	}
	if o.Quiet == 0 {
		o.Quiet = DefaultQuiet
	}
	if o.Longest == 0 {
		o.Longest = max(DefaultLongest, o.Quiet)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Renderer{source: source, targets: targets, opts: o, metrics: newMetrics(o.MetricsFile)}, nil
}

// Once renders every file that what is registered now makes different. A file that fails
// keeps none of the others from it; the error joins an *Error for each, or is that of the
// lookup.
func (r *Renderer) Once(ctx context.Context) (err error) {
	if err := r.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	found, err := r.source.Registrations(ctx, muster.RegistrationFilter{}, false)
	if err != nil {
		return err
	}
	return r.pass(ctx, AnswerOf(found))
}

// open makes every target's place ready.
func (r *Renderer) open() error {
	for i := range r.targets {
		t := &r.targets[i]
		s, repaired, err := openSpot(t.Output)
		if err != nil {
			return errors.Join(cannotWrite(t.Output, err), r.close())
		}
		if repaired {
			r.opts.Log.Warn("an earlier run did not finish; the text before it is in place again", "file", t.Output)
		}
		r.outputs = append(r.outputs, &output{Target: t, spot: s})
	}
	return nil
}

func (r *Renderer) close() error {
	var problems []error
	for _, o := range r.outputs {
		problems = append(problems, o.spot.close())
	}
	r.outputs = nil
	return errors.Join(problems...)
}

// pass renders all files from one answer, and then runs each reload once that one of them
// needs.
func (r *Renderer) pass(ctx context.Context, a *Answer) error {
	var problems []error
	for _, o := range r.outputs {
		err := o.render(ctx, a, r.opts.Log)
		if err != nil || !o.changed {
			r.metrics.note(o, err)
		}
		problems = append(problems, err)
	}
	for i, o := range r.outputs {
		if !o.changed {
			continue
		}
		var group []*output
		for _, other := range r.outputs[i:] {
			if other.changed && other.Reload == o.Reload {
				group = append(group, other)
			}
		}
		problems = append(problems, r.reload(ctx, group))
	}
	problems = append(problems, r.metrics.write())
	return errors.Join(problems...)
}

// reload runs the command of files that have the same, and puts back what was there if it
// fails. It is not interrupted: whoever reads the files is in the middle of it.
func (r *Renderer) reload(ctx context.Context, group []*output) error {
	first := group[0]
	var said string
	var failed error
	if first.Reload != "" {
		said, failed = shell(first.Reload, first.spot.path, first.timeout()).run(context.WithoutCancel(ctx))
	}
	var problems []error
	for _, o := range group {
		err := o.settled(said, failed)
		r.metrics.note(o, err)
		if err == nil {
			r.opts.Log.Info("rendered", withOutput(said, "file", o.Output, "entries", o.spot.Entries.total())...)
		}
		o.changed = false
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// withOutput adds to what is logged what a command printed, if that is anything.
func withOutput(said string, attrs ...any) []any {
	if said == "" {
		return attrs
	}
	return append(attrs, "output", said)
}

// settled keeps what was placed, or puts back what was there before a reload that failed.
func (o *output) settled(said string, failed error) error {
	if failed == nil {
		return o.finish()
	}
	problem := failure(ReloadFailed, o.Output, failed, "the reload %q failed: %s; what was there before is in place again", o.Reload, failed)
	problem.Output = said
	return o.undone(problem)
}

func equal(a, b Calls) bool { return a != nil && maps.Equal(a, b) }
