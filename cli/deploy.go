package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
)

const deployLong = `Deploy a service: its node fetches what --url names, an archive or one executable, into
the instance, runs the command there, checks it, and starts it again when it ends.
--instance names an instance that there is; --type launches one for the service, which
goes when the service is removed.

--check KEY=VALUE,… has the node check the service; separated by commas or blanks, a
value that has these in quotes:
  kind=http    path=/ port= tls status= body= skip-verify
  kind=tcp     port=
  kind=exec    command="/bin/check -w 10", in the instance; exits with 0, 1, 2 or 3 as Nagios plugins
  kind=ttl     the service says it, with muster service check
each with name= interval=10s timeout=5s tries=1 pause= initial-delay= fail-after=1 pass-after=1.

--register KEY=VALUE,… is an entry that it is to have in the discovery feed while it is
well: cluster= protocol= service= address= port= priority= ttl= annotation.KEY=.

--file takes all of it from YAML, with the names of DeployServiceInput in the schema: url is
deployUrl there, and the restart policy an object. Flags count more; checks, entries and
variables are added to those of the file.`

const deployExamples = `  muster service deploy web --type NANO --url https://example.org/web.tar.gz --sha256 9f86d0… \
    --port 8080 --publish any --check 'kind=http path=/healthz interval=5s' --wait -- ./web -listen :8080
  muster service deploy files --instance i-7 --port 80 --publish 30080 -- httpd -f -p 80 -h /srv
  DB_PASSWORD=… muster service deploy api --instance i-7 --env DB_PASSWORD --env-file api.env -- /opt/api
  muster service deploy -f web.yaml --wait`

// exposeFlags are what `service deploy` and `service register` both can be told.
type exposeFlags struct {
	instance, publish, requestID, file string
	port                               int
	checks, entries                    []string
	stableFor                          time.Duration
	wait                               waitFlags
}

func (x *exposeFlags) declare(f *pflag.FlagSet) {
	f.StringVar(&x.instance, "instance", "", "the `INSTANCE` that it is in")
	f.IntVar(&x.port, "port", 0, "its own `PORT` in the instance")
	f.StringVar(&x.publish, "publish", "", "the `PORT` of the node that leads there: a number, or any for one that is free; /udp behind it for UDP")
	f.StringArrayVar(&x.checks, "check", nil, "a health check, `KEY=VALUE,…` as above; may be repeated")
	f.StringArrayVar(&x.entries, "register", nil, "an entry in the discovery feed while it is well, `KEY=VALUE,…` as above; may be repeated")
	f.DurationVar(&x.stableFor, "stable-for", 0, "how long it has to be well before it has its entries")
	f.StringVarP(&x.file, "file", "f", "", "`FILE` with all of it, as YAML; - is standard input")
	f.StringVar(&x.requestID, "request-id", "", "`KEY` of this request: the same one gives the same service; random when left out")
	x.wait.declare(f)
}

// onto adds what the flags say to an input: it was read from a file, or is empty.
func (x *exposeFlags) onto(in *muster.DeployServiceInput) error {
	if x.instance != "" {
		in.InstanceID = new(muster.InstanceID(x.instance))
	}
	if x.port != 0 {
		in.Port = x.port
	}
	if x.publish != "" {
		published, err := readPublished(x.publish)
		if err != nil {
			return err
		}
		in.Publish = &published
	}
	for _, text := range x.checks {
		check, err := readCheck(text)
		if err != nil {
			return err
		}
		in.Checks = append(in.Checks, check)
	}
	for _, text := range x.entries {
		entry, err := readRegistration(text)
		if err != nil {
			return err
		}
		in.RegisterWhenStable = append(in.RegisterWhenStable, entry)
	}
	if x.stableFor != 0 {
		in.StableFor = x.stableFor
	}
	if x.requestID != "" {
		in.RequestID = x.requestID
	}
	if in.RequestID == "" {
		in.RequestID = rand.Text()
	}
	return nil
}

// readPublished reads 8080, 8080/udp, any or any/udp.
func readPublished(text string) (muster.Published, error) {
	number, protocol, hasProtocol := strings.Cut(text, "/")
	p := muster.Published{Protocol: muster.TCP}
	if hasProtocol {
		word, ok := oneWord(protocol, []muster.PortProtocol{muster.TCP, muster.UDP})
		if !ok {
			return p, usageError("--publish %s: %s is no protocol; use tcp or udp", quote(text), quote(protocol))
		}
		p.Protocol = word
	}
	if number == "" || number == "any" {
		return p, nil
	}
	var err error
	if p.Port, err = strconv.Atoi(number); err != nil || p.Port < 1 || p.Port > 65535 {
		return p, usageError("--publish %s: %s is no port; give 1 to 65535, or any for one that is free", quote(text), quote(number))
	}
	return p, nil
}

// deployFlags are what `service deploy` can be told.
type deployFlags struct {
	exposeFlags
	size, image, node string
	selector          map[string]string
	queue             bool
	url, sha256       string
	env               environment
	user, dir         string
	restart           string
	attempts          int
	window, drain     time.Duration
}

func (a *app) serviceDeployCommand() *cobra.Command {
	var d deployFlags
	c := &cobra.Command{
		Use: "deploy [NAME] [-- COMMAND...]", Short: "Deploy a service into an instance", Long: deployLong, Example: deployExamples,
		RunE: func(c *cobra.Command, args []string) error {
			name, command, err := nameAndCommand(c, args)
			if err != nil {
				return err
			}
			input, err := d.input(a, c.Flags(), name, command)
			if err != nil {
				return err
			}
			api, err := a.connect()
			if err != nil {
				return err
			}
			service, err := api.DeployService(c.Context(), input)
			if err != nil {
				return inFlags(err, d.file)
			}
			return a.finishService(c.Context(), api, service, d.wait.service(serviceHealthy))
		},
	}
	f := c.Flags()
	f.StringVar(&d.size, "type", "", "launch an instance of this `TYPE` for it: NANO, MICRO, SMALL, MEDIUM or LARGE")
	f.StringVar(&d.image, "image", "", "with --type: what the instance starts from, an `IMAGE`; minimal when left out")
	f.StringVar(&d.node, "node", "", "with --type: only on this `NODE`, by id or uid")
	f.StringToStringVar(&d.selector, "selector", nil, "with --type: a label `KEY=VALUE` that the node must have; may be repeated")
	f.BoolVar(&d.queue, "queue", false, "with --type: wait for room instead of failing when there is none")
	f.StringVar(&d.url, "url", "", "`URL` of its files: http, https or file; tar, tar.gz, tar.zst or one executable")
	f.StringVar(&d.sha256, "sha256", "", "`CHECKSUM` of that")
	d.env.declare(f, "e")
	f.StringVar(&d.user, "user", "", "`USER` that it runs as, :GROUP behind it or not; somebody without rights when left out")
	f.StringVar(&d.dir, "dir", "", "absolute `PATH` in the instance where it runs; where its files are when left out")
	f.StringVar(&d.restart, "restart", "", "after which `END` it is started again: always, on-failure or never; on-failure when left out")
	f.IntVar(&d.attempts, "restart-attempts", 0, "`HOW-OFTEN` in the window before it is FAILED; -1: no limit; 5 when left out")
	f.DurationVar(&d.window, "restart-window", 0, "the window of --restart-attempts; 10m when left out")
	f.DurationVar(&d.drain, "drain-for", 0, "how long it goes on once its entries are withdrawn, when it is to be stopped; 5s when left out")
	d.declare(f)
	return c
}

// nameAndCommand tells a service's name, if any, from the command behind --.
func nameAndCommand(c *cobra.Command, args []string) (name string, command []string, err error) {
	if at := c.ArgsLenAtDash(); at >= 0 {
		args, command = args[:at], args[at:]
	}
	switch len(args) {
	case 0:
		return "", command, nil
	case 1:
		return args[0], command, nil
	}
	return "", nil, usageError("%s is neither a flag nor the name, which is %s; the command to run comes after --", quote(args[1]), quote(args[0]))
}

// input returns the file and the flags as the API wants them.
func (d *deployFlags) input(a *app, f *pflag.FlagSet, name string, command []string) (in muster.DeployServiceInput, err error) {
	if d.file != "" {
		if in, err = readServiceFile[muster.DeployServiceInput](a.std.In, d.file); err != nil {
			return in, err
		}
	}
	if name != "" {
		in.Name = name
	}
	if len(command) > 0 {
		in.Command = command
	}
	d.place(&in)
	if f.Changed("drain-for") {
		in.DrainFor = &d.drain
	}
	if err := d.restarts(f, &in); err != nil {
		return in, err
	}
	if err := d.onto(&in); err != nil {
		return in, err
	}
	env, err := d.env.read(a.std.LookupEnv)
	if err != nil {
		return in, err
	}
	if in.Env == nil {
		in.Env = muster.Map{}
	}
	for key, value := range env {
		in.Env[key] = value
	}
	if in.InstanceID == nil && in.Type == nil {
		return in, usageError("neither --instance nor --type is there; name the instance that it is in, or the type of one to launch for it")
	}
	if in.InstanceID != nil && (in.Type != nil || d.launches()) {
		return in, usageError("--type, --image, --node, --selector and --queue launch an instance; leave them out to deploy into %s", *in.InstanceID)
	}
	return in, inFlags(in.Validate(), d.file)
}

func (d *deployFlags) launches() bool {
	return d.size != "" || d.image != "" || d.node != "" || len(d.selector) > 0 || d.queue
}

// place adds where it goes, and what runs there.
func (d *deployFlags) place(in *muster.DeployServiceInput) {
	if d.size != "" {
		in.Type = new(muster.InstanceType(strings.ToUpper(d.size)))
	}
	if d.node != "" {
		in.NodeID = &d.node
	}
	if len(d.selector) > 0 {
		in.NodeSelector = d.selector
	}
	in.Queue = in.Queue || d.queue
	for to, text := range map[*string]string{
		&in.Image: d.image, &in.DeployURL: d.url, &in.SHA256: d.sha256, &in.User: d.user, &in.Dir: d.dir,
	} {
		if text != "" {
			*to = text
		}
	}
}

// restarts adds the policy.
func (d *deployFlags) restarts(f *pflag.FlagSet, in *muster.DeployServiceInput) error {
	if !f.Changed("restart") && !f.Changed("restart-attempts") && !f.Changed("restart-window") {
		return nil
	}
	if in.Restart == nil {
		in.Restart = &muster.RestartPolicy{}
	}
	if f.Changed("restart") {
		when, ok := oneWord(d.restart, []muster.RestartWhen{muster.RestartAlways, muster.RestartOnFailure, muster.RestartNever})
		if !ok {
			return usageError("--restart %s is none; use always, on-failure or never", quote(d.restart))
		}
		in.Restart.When = when
	}
	if f.Changed("restart-attempts") {
		if d.attempts == 0 {
			return usageError("--restart-attempts 0 is none; use --restart never for no restart, or -1 for no limit")
		}
		in.Restart.Attempts = d.attempts
	}
	if f.Changed("restart-window") {
		if d.window <= 0 {
			return usageError("--restart-window %s is no time above 0s; write one such as 10m", d.window)
		}
		in.Restart.Window = d.window
	}
	return nil
}

// inFlags says what is wrong with an input in the words of the flags, unless a file had
// a part in it.
func inFlags(err error, file string) error {
	e, ok := errors.AsType[*muster.Error](err)
	if !ok || file != "" || e.Code != muster.Invalid || e.Field == "" {
		return err
	}
	flags := map[string]string{
		"name": "NAME", "command": "COMMAND", "instanceId": "--instance", "type": "--type", "image": "--image", "nodeId": "--node",
		"nodeSelector": "--selector", "deployUrl": "--url", "sha256": "--sha256", "env": "--env", "user": "--user", "dir": "--dir",
		"port": "--port", "publish": "--publish", "checks": "--check", "restart": "--restart", "registerWhenStable": "--register",
		"stableFor": "--stable-for", "drainFor": "--drain-for", "requestId": "--request-id",
	}
	root, below, _ := strings.Cut(e.Field, ".")
	flag, ok := flags[root]
	message, isPrefix := strings.CutPrefix(e.Message, e.Field+": ")
	if !ok || !isPrefix {
		return err
	}
	if below != "" {
		flag += " " + below
	}
	message = strings.NewReplacer("deployUrl", "--url", "; give the service's own as port", "; give the service's own as --port").Replace(message)
	return &muster.Error{Code: e.Code, Field: e.Field, Message: flag + ": " + message, Details: e.Details, Err: e.Err}
}

const registerLong = `Announce a process that runs already in an instance: it is checked, published and
registered like one that was deployed, and never started or stopped. --check, --register
and --file are as muster service deploy has them; see muster service deploy --help.`

const registerExamples = `  muster service register db --instance i-7 --port 5432 --publish any --check kind=tcp,interval=5s --wait`

func (a *app) serviceRegisterCommand() *cobra.Command {
	var x exposeFlags
	c := &cobra.Command{
		Use: "register [NAME]", Short: "Announce a process that runs already in an instance", Long: registerLong, Example: registerExamples,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 || c.ArgsLenAtDash() >= 0 {
				return usageError("%s takes a name alone, not a command: whoever runs the process starts it", c.CommandPath())
			}
			input, err := x.announced(a, args)
			if err != nil {
				return err
			}
			return a.register(c.Context(), input, &x)
		},
	}
	x.declare(c.Flags())
	return c
}

func (a *app) register(ctx context.Context, input muster.RegisterServiceInput, x *exposeFlags) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	service, err := api.RegisterService(ctx, input)
	if err != nil {
		return inFlags(err, x.file)
	}
	return a.finishService(ctx, api, service, x.wait.service(serviceHealthy))
}

// announced returns the file and the flags as the API wants them.
func (x *exposeFlags) announced(a *app, args []string) (in muster.RegisterServiceInput, err error) {
	if x.file != "" {
		if in, err = readServiceFile[muster.RegisterServiceInput](a.std.In, x.file); err != nil {
			return in, err
		}
	}
	all := muster.DeployServiceInput{
		Name: in.Name, Port: in.Port, Publish: in.Publish, Checks: in.Checks, RegisterWhenStable: in.RegisterWhenStable,
		StableFor: in.StableFor, RequestID: in.RequestID,
	}
	if in.InstanceID != "" {
		all.InstanceID = &in.InstanceID
	}
	if err := x.onto(&all); err != nil {
		return in, err
	}
	if len(args) > 0 {
		all.Name = args[0]
	}
	if all.InstanceID == nil {
		return in, usageError("--instance is missing; name the instance that the process runs in")
	}
	in = muster.RegisterServiceInput{
		InstanceID: *all.InstanceID, Name: all.Name, Port: all.Port, Publish: all.Publish, Checks: all.Checks,
		RegisterWhenStable: all.RegisterWhenStable, StableFor: all.StableFor, RequestID: all.RequestID,
	}
	return in, inFlags(in.Validate(), x.file)
}
