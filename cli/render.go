package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster/cli/render"
	"github.com/muster-cloud/muster/client"
)

const renderLong = `Write a file from a template and what is registered in the discovery feed, once or,
with --watch, again after each change.

A template is one of Go's text/template with the functions of sprig, but those that read
the environment, ask a name server, or say something else each time. Its own are

    registrations "CLUSTER" "PROTOCOL" "SERVICE" "ADDRESS"   each can be "*"; behind them
        "preferred"  only the best priority level that is healthy
        "optional"   may become empty or shrink at will
    services "CLUSTER" "PROTOCOL"    the names of the services there
    word "FALLBACK" TEXT             TEXT if it is a plain word: for what others wrote
    oneLine TEXT                     TEXT without line breaks

The file is replaced as a whole, with the mode and owner that it has, and not touched when
the text is the same. Before, --check has to succeed: a {} in it is the path of the new
text; without one, the command finds the new text in the file's place (seen by it alone
where muster may mount, else for everybody, and put back if it fails). After, --reload is
run; if it fails, what was there before is put back. Both are killed, with all that they
started, after --command-timeout.

The guard leaves a file as it is when a lookup that found something finds nothing, or much
less: see --allow-empty and --max-shrink. It remembers in .FILE.muster beside the file.

--config FILE has several, as YAML:

    quiet: 500ms
    targets:
      - template: nginx.tmpl
        output: /etc/nginx/conf.d/upstreams.conf
        check: nginx -t
        reload: nginx -s reload
        timeout: 30s
        maxShrink: 50
        allowEmpty: false
        allowIncomplete: false

The exit code is 2 for a template that is wrong or fails, 9 when the guard refused, 10 when
a check failed, 11 when a reload failed; of several files, that of the first.`

const renderExamples = `  muster render -t nginx.tmpl -o /etc/nginx/conf.d/upstreams.conf --check 'nginx -t' --reload 'nginx -s reload' --watch
  muster render -t haproxy.tmpl -o /etc/haproxy/haproxy.cfg --check 'haproxy -c -f {}' --dry-run
  muster render --config /etc/muster/render.yaml --watch`

// renderFlags are what `render` can be told.
type renderFlags struct {
	template, output, config string
	target                   render.Target
	keeping
	dryRun bool
}

// keeping is how files are kept, whatever they are from.
type keeping struct {
	watch       bool
	quiet       time.Duration
	longest     time.Duration
	metricsFile string
	log         logSettings
}

func (k *keeping) declare(f *pflag.FlagSet) {
	f.BoolVarP(&k.watch, "watch", "w", false, "go on, and follow each change")
	f.DurationVar(&k.quiet, "quiet", render.DefaultQuiet, "--watch: how long nothing may change before the file follows")
	f.DurationVar(&k.longest, "longest", render.DefaultLongest, "--watch: how long a change waits at most while others keep coming")
	f.StringVar(&k.metricsFile, "metrics-file", "", "`FILE` for metrics, as a node exporter's textfile collector reads them")
	k.log.declare(f, slog.LevelInfo)
}

func declareGuard(f *pflag.FlagSet, t *render.Target) {
	f.IntVar(&t.MaxShrink, "max-shrink", render.DefaultMaxShrink, "by how many `PERCENT` what a lookup finds may shrink at once; 100: by any")
	f.BoolVar(&t.AllowEmpty, "allow-empty", false, "let it shrink to nothing")
	f.BoolVar(&t.AllowIncomplete, "allow-incomplete", false, "begin although what others registered is not known up to now")
}

func (a *app) renderCommand() *cobra.Command {
	var flags renderFlags
	c := &cobra.Command{
		Use: "render", Short: "Write files from templates and the discovery feed", Long: renderLong, Example: renderExamples,
		Args: exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			targets, o, err := flags.read(c.Flags())
			if err != nil {
				return a.renderProblem(err)
			}
			return a.renderProblem(a.render(c.Context(), targets, o, &flags))
		},
	}
	f := c.Flags()
	f.StringVarP(&flags.template, "template", "t", "", "`FILE` of the template")
	f.StringVarP(&flags.output, "output", "o", "", "`FILE` to write")
	f.StringVar(&flags.config, "config", "", "`FILE` with several templates and files, instead of those flags")
	f.StringVar(&flags.target.Check, "check", "", "`COMMAND` that has to accept a new text")
	f.StringVar(&flags.target.Reload, "reload", "", "`COMMAND` that has it take effect")
	f.DurationVar(&flags.target.Timeout, "command-timeout", render.DefaultCommandTimeout, "how long each command may take")
	f.BoolVar(&flags.dryRun, "dry-run", false, "print what would change, and change nothing")
	declareGuard(f, &flags.target)
	flags.declare(f)
	return c
}

// read returns what the flags, or the file that they name, ask for.
func (r *renderFlags) read(f *pflag.FlagSet) ([]render.Target, render.Options, error) {
	if r.dryRun && r.watch {
		return nil, render.Options{}, usageError("--dry-run prints what would change now; leave --watch out")
	}
	if r.config != "" {
		for _, name := range []string{"template", "output", "check", "reload", "command-timeout", "max-shrink", "allow-empty", "allow-incomplete"} {
			if f.Changed(name) {
				return nil, render.Options{}, usageError("--%s is for one file; write it into %s", name, r.config)
			}
		}
		targets, o, err := render.ReadConfig(r.config)
		return targets, r.over(f, o), err
	}
	if r.template == "" || r.output == "" {
		return nil, render.Options{}, usageError("name a template and a file to write with -t and -o, or several with --config")
	}
	if f.Changed("max-shrink") && r.target.MaxShrink == 0 {
		return nil, render.Options{}, usageError("--max-shrink 0 would let nothing go; give 1 to 100")
	}
	content, err := render.ReadTemplate(r.template)
	if err != nil {
		return nil, render.Options{}, err
	}
	r.target.Output, r.target.Content = r.output, content
	return []render.Target{r.target}, r.over(f, render.Options{}), nil
}

// over returns options in which a flag that was given counts more.
func (k *keeping) over(f *pflag.FlagSet, o render.Options) render.Options {
	if f.Changed("quiet") || o.Quiet == 0 {
		o.Quiet = k.quiet
	}
	if f.Changed("longest") || o.Longest == 0 {
		o.Longest = max(k.longest, o.Quiet)
	}
	if k.metricsFile != "" {
		o.MetricsFile = k.metricsFile
	}
	return o
}

func (a *app) render(ctx context.Context, targets []render.Target, o render.Options, flags *renderFlags) error {
	if !flags.dryRun {
		return a.keepFiles(ctx, targets, o, &flags.keeping)
	}
	api, err := a.connect()
	if err != nil {
		return err
	}
	r, err := render.New(api, targets, o)
	if err != nil {
		return err
	}
	var changes bytes.Buffer
	err = r.DryRun(ctx, &changes)
	if err == nil && changes.Len() == 0 {
		a.say("nothing would change")
	}
	_, printErr := changes.WriteTo(a.std.Out)
	return errors.Join(err, printErr)
}

// keepFiles renders once, or until ctx ends.
func (a *app) keepFiles(ctx context.Context, targets []render.Target, o render.Options, k *keeping) error {
	log, err := k.log.open(a.std.Err)
	if err != nil {
		return err
	}
	o.Log = log
	api, err := a.connect()
	if err != nil {
		return err
	}
	r, err := render.New(api, targets, o)
	if err != nil {
		return err
	}
	if !k.watch {
		return r.Once(ctx)
	}
	var hooks client.WatchOptions
	a.tellOfLoss(&hooks)
	if err := r.Run(ctx, hooks); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// renderProblem tells what failed for which file, and what the command printed, and ends
// with the exit code of the first.
func (a *app) renderProblem(err error) error {
	first, ok := errors.AsType[*render.Error](err)
	if !ok || errors.Is(err, context.Canceled) {
		return err
	}
	for _, problem := range render.Problems(err) {
		_, _ = fmt.Fprint(a.std.Err, describe(problem))
		e, ok := errors.AsType[*render.Error](problem)
		if !ok || e.Output == "" {
			continue
		}
		for line := range strings.SplitSeq(e.Output, "\n") {
			_, _ = fmt.Fprintf(a.std.Err, "  | %s\n", oneLine(line))
		}
	}
	switch first.Kind {
	case render.BadTemplate:
		return exitStatus(exitUsage)
	case render.Refused:
		return exitStatus(exitRefused)
	case render.CheckFailed:
		return exitStatus(exitCheckFailed)
	case render.ReloadFailed:
		return exitStatus(exitReloadFailed)
	}
	return exitStatus(exitFailure)
}
