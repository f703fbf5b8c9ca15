package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/client"
)

const (
	helloName = "hello"
	// tourPatience is how long the tour waits for each thing before it says so and goes on.
	tourPatience = 60 * time.Second
	// farewellPatience is how long the instances have to end.
	farewellPatience = 60 * time.Second
	// linkTTL is how long the link is good that signs a browser in.
	linkTTL = time.Hour
)

// errSeen ends a watch that has seen what it was made for.
var errSeen = errors.New("seen")

// tell says what was started and what to do next, as it happens. What goes wrong
// is part of the story: the rest goes on.
func (t *tour) tell(ctx context.Context) {
	t.print("\nmuster %s: a small cloud on this machine\n", version)
	t.line("registry", "%s, data in %s", t.url, t.flags.dir)
	if t.missing != nil {
		t.line("agent", "left out, so nothing can be launched: %s", oneLine(t.missing.Error()))
	} else if err := t.tellAgent(ctx); err != nil && ctx.Err() == nil {
		t.line("trouble", "%s", oneLine(err.Error()))
	}
	if ctx.Err() != nil {
		return
	}
	t.print("")
	t.line("look", "%s", t.link(ctx))
	title := "try"
	for _, command := range t.commands() {
		t.line(title, "%s%s %s%s", t.sudo(), t.std.Program, command, t.serverFlag())
		title = ""
	}
	t.print("\nCtrl-C stops it. %s\n", t.fate())
}

// link signs a browser in, once.
func (t *tour) link(ctx context.Context) string {
	plain := t.url + "/playground/"
	if t.to.key == "" {
		return plain
	}
	signIn, err := t.api.CreateSignIn(ctx, linkTTL)
	if err != nil {
		return plain
	}
	return fmt.Sprintf("%s%s  (good once, for %s)", t.url, signIn.Path, shortDuration(linkTTL.String()))
}

// sudo is what a command needs that is run by who ran this one: the key is root's.
func (t *tour) sudo() string {
	if user, _ := t.std.LookupEnv("SUDO_USER"); user != "" && os.Geteuid() == 0 {
		return "sudo "
	}
	return ""
}

// commands are what is worth trying here.
func (t *tour) commands() []string {
	if t.missing != nil {
		return []string{"node list", "instance list", "watch"}
	}
	return []string{"instance list", "instance launch --type MICRO --wait", "service list", "watch"}
}

func (t *tour) fate() string {
	switch {
	case t.flags.ephemeral:
		return "Every instance is terminated then."
	case t.missing != nil:
		return "The data stays."
	}
	return "Instances run on, and the next start finds them; --ephemeral (EPHEMERAL=1) ends them."
}

// tellAgent waits for the agent, and launches the first instance, with a service, if asked to.
func (t *tour) tellAgent(ctx context.Context) error {
	t.line("image", "%s", t.image)
	node, err := t.awaitNode(ctx)
	if err != nil {
		return err
	}
	t.line("agent", "%s is %s: %d CPUs and %d MiB for instances", node.ID, t.painter()(string(node.Status)), node.CPUCount, node.MemoryMB)
	if !t.flags.launch {
		return nil
	}
	return t.tellHello(ctx)
}

// awaitNode returns the node once its agent has registered it in this run, which
// is a change in any case.
func (t *tour) awaitNode(ctx context.Context) (node *client.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, tourPatience)
	defer cancel()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case since := <-t.before:
		err = t.api.WatchNodes(ctx, nil, client.WatchOptions{Since: since}, func(e client.Event) error {
			if e.Type == muster.EventChange && e.Node != nil && e.Node.Status == muster.Healthy {
				node = e.Node
				return errSeen
			}
			return nil
		})
	}
	if errors.Is(err, errSeen) {
		return node, nil
	}
	return nil, fmt.Errorf("the agent did not register within %s (%w); start again with --log-level debug to see why", tourPatience, err)
}

// tellHello launches the first instance, unless it is there already.
func (t *tour) tellHello(ctx context.Context) error {
	began := time.Now()
	i, how, err := t.hello(ctx)
	if err != nil {
		return err
	}
	if i, err = await(ctx, t.api, i, &waiting{running, tourPatience}, func(*client.Instance) {}); err != nil {
		return err
	}
	t.line("instance", "%s %q %s: %s at %s, %s %d%% of a core, %d MiB (%s)",
		i.ID, i.Name, how, t.painter()(string(i.Status)), i.Addr, i.Type, i.CPULimit, i.MemLimitMB, took(began))
	return t.tellSite(ctx, i)
}

// hello returns the instance of an earlier run, started again if it has ended,
// or launches a new one.
func (t *tour) hello(ctx context.Context) (i *client.Instance, how string, err error) {
	name := helloName
	for i, err := range t.api.AllInstances(ctx, &muster.InstanceFilter{Name: &name}) {
		if err != nil {
			return nil, "", err
		}
		switch i.Status {
		case muster.Running, muster.Provisioning, muster.Pending:
			return i, "is still here", nil
		case muster.Stopped, muster.Failed:
			i, err := t.api.StartInstance(ctx, i.ID)
			return i, "started again", err
		}
	}
	i, err = t.api.LaunchInstance(ctx, muster.LaunchInstanceInput{Type: muster.Nano, Name: helloName, Image: image.Minimal})
	return i, "launched", err
}

// farewell ends the instances if it was asked to, and returns what became of them.
func (t *tour) farewell(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, farewellPatience)
	defer cancel()
	instances, err := t.live(ctx)
	if err != nil {
		return "", err
	}
	if !t.flags.ephemeral {
		return fmt.Sprintf("%s left alone, data in %s", counted(len(instances), "instance"), t.flags.dir), nil
	}
	for _, i := range instances {
		if _, err := t.api.TerminateInstance(ctx, i.ID); err != nil {
			return "", err
		}
	}
	if t.missing != nil {
		return fmt.Sprintf("%s asked to end, which needs their agents, data in %s", counted(len(instances), "instance"), t.flags.dir), nil
	}
	for _, i := range instances {
		if _, err := await(ctx, t.api, i, &waiting{terminated, farewellPatience}, func(*client.Instance) {}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s terminated, data in %s", counted(len(instances), "instance"), t.flags.dir), nil
}

// live returns the instances that are not gone yet.
func (t *tour) live(ctx context.Context) ([]*client.Instance, error) {
	all, err := collect(t.api.AllInstances(ctx, nil))
	return slices.DeleteFunc(all, func(i *client.Instance) bool { return i.Status == muster.Terminated }), err
}

// serverFlag is what a command needs to find this server.
func (t *tour) serverFlag() string {
	if t.url == client.DefaultURL {
		return ""
	}
	return " --server " + t.url
}

func (t *tour) print(format string, args ...any) {
	_, _ = fmt.Fprintf(t.std.Out, format+"\n", args...)
}

func (t *tour) line(title, format string, args ...any) {
	t.print("  %-10s %s", title, fmt.Sprintf(format, args...))
}

// counted is a number of things.
func counted(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func took(since time.Time) string { return time.Since(since).Round(10 * time.Millisecond).String() }
