package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const (
	// completePatience is how long a person at the Tab key is kept waiting.
	completePatience = time.Second
	// completeMost bounds what is offered.
	completeMost = 1000
)

// source is what can be written for a placeholder. What does not begin with
// prefix may be among it: shells leave it out.
type source func(ctx context.Context, c *cobra.Command, prefix string) ([]cobra.Completion, cobra.ShellCompDirective)

// complete has every argument and every value of a flag completed by its
// placeholder in the help: what is called NODE is a node. What nobody knows is
// not completed at all, since the names of files would be nonsense.
func (a *app) complete(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	sources := a.sources()
	for c := range tree(root) {
		if placeholders := arguments(c); len(placeholders) > 0 {
			c.ValidArgsFunction = inOrder(placeholders, sources)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			placeholder, _ := pflag.UnquoteUsage(f)
			from := sources["--"+f.Name]
			if from == nil {
				from = sources[placeholder]
			}
			if from != nil {
				_ = c.RegisterFlagCompletionFunc(f.Name, always(from)) // it only fails for a flag that isn't there, or twice
			}
		})
	}
}

// tree goes through a command and all below it.
func tree(c *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		if !yield(c) {
			return
		}
		for _, sub := range c.Commands() {
			for c := range tree(sub) {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// always completes by a source, whatever was given before.
func always(from source) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return from(c.Context(), c, prefix)
	}
}

// arguments are the placeholders of a command's arguments, up to its first flag.
func arguments(c *cobra.Command) []string {
	words := strings.Fields(c.Use)[1:]
	if at := slices.IndexFunc(words, func(word string) bool { return strings.ContainsAny(word[:1], "-[") }); at >= 0 {
		return words[:at]
	}
	return words
}

// inOrder completes each argument by its placeholder, or by all of those that it
// can be, such as INSTANCE|SERVICE.
func inOrder(placeholders []string, sources map[string]source) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) (out []cobra.Completion, directive cobra.ShellCompDirective) {
		directive = cobra.ShellCompDirectiveNoFileComp
		if len(args) < len(placeholders) {
			for one := range strings.SplitSeq(placeholders[len(args)], "|") {
				if from := sources[one]; from != nil {
					var more []cobra.Completion
					more, directive = from(c.Context(), c, prefix)
					out = append(out, more...)
				}
			}
		}
		return out, directive
	}
}

// sources are all that is completed, by placeholder, or by the name of one flag.
func (a *app) sources() map[string]source {
	return map[string]source{
		"NODE": a.nodeIDs, "INSTANCE": a.instanceIDs, "SERVICE": a.serviceIDs, "IMAGE": a.imageNames, "VOLUME": a.volumeNames,
		"SHELL": oneOf(shells()...), "FORMAT": oneOf(formatTable, formatJSON, formatYAML), "--log-format": oneOf("text", "json"),
		"LEVEL": oneOf("DEBUG", "INFO", "WARN", "ERROR"), "TYPE": oneOf(instanceTypes()...), "ROLE": roles, "KEY": a.keyIDs, "TOKEN": a.tokenIDs, "CONTEXT": a.contextNames, "--context": a.contextNames,
		"HEALTH": oneOf(texts(serviceHealths())...), "--restart": oneOf("always", "on-failure", "never"),
		"KIND": oneOf("node", "instance", "service", "cluster"), "STATUS": statuses, "--filter": a.filterTerms,
		"DIRECTORY": files, "PATH": files, "FILE": files, "TARBALL": files,
	}
}

// oneOf offers the same always.
func oneOf(list ...string) source {
	return func(context.Context, *cobra.Command, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// files leaves it to the shell.
func files(context.Context, *cobra.Command, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// isOf tells whether a command is below such as `muster node`.
func isOf(c *cobra.Command, noun string) bool { return c.HasParent() && c.Parent().Name() == noun }

func statuses(_ context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	switch {
	case isOf(c, "node"):
		return texts(liveNodeStatuses()), cobra.ShellCompDirectiveNoFileComp
	case c.Name() == "check": // of a service
		return []cobra.Completion{"ok", "warning", "critical", "unknown"}, cobra.ShellCompDirectiveNoFileComp
	case isOf(c, "service"):
		return texts(muster.ServiceStatuses()), cobra.ShellCompDirectiveNoFileComp
	}
	return texts(muster.InstanceStatuses()), cobra.ShellCompDirectiveNoFileComp
}

func roles(_ context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if c.HasParent() && c.Parent().Name() == "key" {
		return texts([]muster.Role{muster.Viewer, muster.Operator, muster.Admin, muster.NodeAgent, muster.Registrar}), cobra.ShellCompDirectiveNoFileComp
	}
	return texts(nodeRoles()), cobra.ShellCompDirectiveNoFileComp
}

// contextNames offers what muster login has kept.
func (a *app) contextNames(context.Context, *cobra.Command, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	s, err := a.load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []cobra.Completion
	for _, c := range s.Contexts {
		out = append(out, cobra.CompletionWithDesc(c.Name, c.Server))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// offer asks the server, and offers what it has said when the time is up.
func offer[T any](ctx context.Context, a *app, all func(context.Context, *client.Client) iter.Seq2[*T, error], entry func(*T) cobra.Completion) ([]cobra.Completion, cobra.ShellCompDirective) {
	t, err := a.aim()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	o := t.options(completePatience)
	o.Tries = 1
	c, err := client.New(o)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	var out []cobra.Completion
	for object, err := range all(ctx, c) {
		if err != nil || len(out) == completeMost {
			break
		}
		if e := entry(object); e != "" {
			out = append(out, e)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// nodeIDs offers the nodes that a command can be about.
func (a *app) nodeIDs(ctx context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if c.Name() == "forget" { // those were removed, and are in no list
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var filter *muster.NodeFilter
	if c.Name() == "cordon" || c.Name() == "uncordon" {
		schedulable := c.Name() == "cordon"
		filter = &muster.NodeFilter{Schedulable: &schedulable}
	}
	return offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.Node, error] {
		return api.AllNodes(ctx, filter)
	}, func(n *client.Node) cobra.Completion {
		return cobra.CompletionWithDesc(string(n.ID), oneLine(nodeStatus(n)+", "+n.Addr))
	})
}

// instanceIDs offers the instances that a command can be about.
func (a *app) instanceIDs(ctx context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	filter := &muster.InstanceFilter{}
	switch c.Name() {
	case "start":
		filter.Status = []muster.InstanceStatus{muster.Stopped, muster.Failed}
	case "stop":
		filter.Status = []muster.InstanceStatus{muster.Pending, muster.Provisioning, muster.Running}
	case "adopt":
		filter.Status = []muster.InstanceStatus{muster.Unknown}
	case "deploy", "register", "exec":
		filter.Status = []muster.InstanceStatus{muster.Running}
	case "terminate":
		filter.Status = slices.DeleteFunc(muster.InstanceStatuses(), func(s muster.InstanceStatus) bool {
			return s == muster.Terminating || s == muster.Terminated
		})
	}
	return offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.Instance, error] {
		return api.AllInstances(ctx, filter)
	}, func(i *client.Instance) cobra.Completion {
		what := string(i.Status)
		if i.Name != string(i.ID) {
			what = i.Name + ", " + what
		}
		if node := nodeOf(i); node != "" {
			what += " on " + node
		}
		return cobra.CompletionWithDesc(string(i.ID), oneLine(what))
	})
}

// serviceIDs offers the services that a command can be about.
func (a *app) serviceIDs(ctx context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	filter := &muster.ServiceFilter{}
	switch c.Name() {
	case "start":
		filter.Status = []muster.ServiceStatus{muster.ServiceStopped, muster.ServiceFailed}
	case "stop":
		filter.Status = []muster.ServiceStatus{muster.ServicePending, muster.ServiceDeploying, muster.ServiceRunning, muster.ServiceRestarting}
	case "remove":
		filter.Status = slices.DeleteFunc(muster.ServiceStatuses(), func(s muster.ServiceStatus) bool {
			return s == muster.ServiceRemoving || s == muster.ServiceRemoved
		})
	}
	return offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.Service, error] {
		return api.AllServices(ctx, filter)
	}, func(s *client.Service) cobra.Completion {
		return cobra.CompletionWithDesc(string(s.ID), oneLine(s.Name+", "+serviceState(s)+" in "+string(s.InstanceID)))
	})
}

// keyIDs offers the access keys that a command can be about.
func (a *app) keyIDs(ctx context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.AccessKey, error] {
		return api.AllAccessKeys(ctx)
	}, func(k *client.AccessKey) cobra.Completion {
		if k.Status != muster.KeyActive && c.Name() != "audit" {
			return ""
		}
		return cobra.CompletionWithDesc(string(k.ID), oneLine(k.Name+", "+string(k.Role)))
	})
}

// tokenIDs offers the join tokens.
func (a *app) tokenIDs(ctx context.Context, _ *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.JoinToken, error] {
		return func(yield func(*client.JoinToken, error) bool) {
			tokens, err := api.JoinTokens(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range tokens {
				if !yield(&tokens[i], nil) {
					return
				}
			}
		}
	}, func(t *client.JoinToken) cobra.Completion {
		return cobra.CompletionWithDesc(string(t.ID), fmt.Sprintf("used %d of %d", len(t.Used), t.Uses))
	})
}

// imageNames offers the server's images, and those that some node has of its own.
func (a *app) imageNames(ctx context.Context, c *cobra.Command, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names, directive := offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.Image, error] {
		return api.AllImages(ctx)
	}, func(i *client.Image) cobra.Completion { return i.Name })
	if c.Name() != "launch" && c.Name() != "deploy" {
		return names, directive
	}
	_, _ = offer(ctx, a, func(ctx context.Context, api *client.Client) iter.Seq2[*client.Node, error] {
		return api.AllNodes(ctx, nil)
	}, func(n *client.Node) cobra.Completion {
		for _, ref := range n.Images {
			name, _, _ := strings.Cut(ref, "@") // behind it is the digest
			names = append(names, name)
		}
		return cobra.Completion(n.ID)
	})
	slices.Sort(names)
	return slices.Compact(names), directive
}

// filterTerms offers the keys of --filter, and behind a key its values. Terms
// before the last comma stay as they are.
func (a *app) filterTerms(ctx context.Context, c *cobra.Command, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	done, term := "", prefix
	if at := strings.LastIndex(prefix, ","); at >= 0 {
		done, term = prefix[:at+1], prefix[at+1:]
	}
	keys, labels := instanceNarrowing().choices(), []cobra.Completion{labelPrefix}
	switch {
	case isOf(c, "node"):
		keys = nodeNarrowing().choices()
	case isOf(c, "service"):
		keys, labels = serviceNarrowing().choices(), nil
	case isOf(c, "registration"):
		keys, labels = registrationNarrowing().choices(), nil
	}
	var out []cobra.Completion
	key, _, hasValue := strings.Cut(term, "=")
	if !hasValue {
		for key := range keys {
			out = append(out, done+key+"=")
		}
		slices.Sort(out)
		for _, label := range labels {
			out = append(out, done+label)
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	values, directive := keys[key], cobra.ShellCompDirectiveNoFileComp
	switch key {
	case "node":
		values, directive = a.nodeIDs(ctx, c, "")
	case "instance":
		values, directive = a.instanceIDs(ctx, c, "")
	}
	for _, value := range values {
		out = append(out, done+key+"="+value)
	}
	return out, directive
}
