package cli

import (
	"crypto/rand"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
)

const launchExamples = `  muster instance launch --type NANO --wait
  muster instance launch --type SMALL --name web --env MODE=test --wait -- httpd -f -p 8080
  muster instance launch --type SMALL --volume data:/var/lib/app --volume /srv/shared:/shared:ro
  muster instance launch --type LARGE --selector zone=a --queue --queue-timeout 10m`

// launchFlags are what `instance launch` can be told.
type launchFlags struct {
	size, name, image, node, requestID string
	env                                environment
	volumes                            []string
	labels, selector                   map[string]string
	disk                               int
	queue                              bool
	queueTimeout                       time.Duration
	wait                               waitFlags
}

func (a *app) launchCommand() *cobra.Command {
	var l launchFlags
	c := &cobra.Command{
		Use: "launch --type TYPE [-- COMMAND...]", Short: "Launch an instance where it fits", Example: launchExamples,
		RunE: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); at > 0 || (at < 0 && len(args) > 0) {
				return usageError("%s is not a flag; the command to run comes after --", quote(args[0]))
			}
			input, err := l.input(args, a.std.LookupEnv)
			if err != nil {
				return err
			}
			api, err := a.connect()
			if err != nil {
				return err
			}
			instance, err := api.LaunchInstance(c.Context(), input)
			if err != nil {
				return err
			}
			return a.finish(c.Context(), api, instance, l.wait.goal(running))
		},
	}
	f := c.Flags()
	f.StringVar(&l.size, "type", "", "its `TYPE`, how large it is: NANO, MICRO, SMALL, MEDIUM or LARGE (required)")
	f.StringVar(&l.name, "name", "", "a `NAME` for people; its id when left out")
	f.StringVar(&l.image, "image", "minimal", "what its root file system starts from, an `IMAGE`")
	l.env.declare(f, "")
	f.StringToStringVar(&l.labels, "label", nil, "a label `KEY=VALUE` of its own; may be repeated")
	f.StringToStringVar(&l.selector, "selector", nil, "a label `KEY=VALUE` that its node must have; may be repeated")
	f.StringArrayVar(&l.volumes, "volume", nil, "what it sees of its node: a volume `NAME:/PATH`, or /HOST/PATH:/PATH; :ro behind it for read-only; may be repeated")
	f.IntVar(&l.disk, "disk", 0, "`MIB` that it may write to its own disk; 0: no limit")
	f.StringVar(&l.node, "node", "", "only on this `NODE`, by id or uid")
	f.BoolVar(&l.queue, "queue", false, "wait for room instead of failing when there is none")
	f.DurationVar(&l.queueTimeout, "queue-timeout", 0, "with --queue: how long at most")
	f.StringVar(&l.requestID, "request-id", "", "`KEY` of this request: the same one gives the same instance; random when left out")
	l.wait.declare(f)
	return c
}

// input returns the flags as the API wants them. A request has an id in any
// case, so that it can be sent again when the answer was lost.
func (l *launchFlags) input(command []string, lookup func(string) (string, bool)) (muster.LaunchInstanceInput, error) {
	if l.size == "" {
		return muster.LaunchInstanceInput{}, usageError("--type is missing; give NANO, MICRO, SMALL, MEDIUM or LARGE")
	}
	env, err := l.env.read(lookup)
	if err != nil {
		return muster.LaunchInstanceInput{}, err
	}
	volumes, err := volumeMounts(l.volumes)
	if err != nil {
		return muster.LaunchInstanceInput{}, err
	}
	input := muster.LaunchInstanceInput{
		Type: muster.InstanceType(strings.ToUpper(l.size)), Name: l.name, Image: l.image,
		Command: command, Env: env, Labels: l.labels, NodeSelector: l.selector, Volumes: volumes, DiskLimitMB: l.disk,
		NodeID: given(l.node), Queue: l.queue, RequestID: l.requestID,
	}
	if l.queueTimeout != 0 {
		input.QueueTimeout = &l.queueTimeout
	}
	if input.RequestID == "" {
		input.RequestID = rand.Text()
	}
	return input, input.Validate()
}
