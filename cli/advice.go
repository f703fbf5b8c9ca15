package cli

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// listAdvice is how the server advises to list something.
var listAdvice = regexp.MustCompile(`see the list of (node|instance|service|image|volume|key|token)s\b`)

// inOurWords says what the server advises, which speaks of its API, in those of the command line.
func inOurWords(text string) string {
	text = strings.NewReplacer(
		"\n", "; ", "queueTimeout: it", "--queue-timeout", "queue: true", "--queue",
		"see the list of registrations", "see muster registration query",
	).Replace(text)
	return listAdvice.ReplaceAllString(text, "see muster $1 list")
}

// nobodyThere says what to do where no server runs, when nobody said which one is meant.
func (t *target) nobodyThere(err error) error {
	if t.named || t.here != nil || !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return &muster.Error{
		Code: muster.Unavailable, Err: err,
		Message: "no server runs at " + t.url + "; start one with muster server, or muster dev to try things, or name another with --server or muster login",
	}
}

// namePatience is how long it is looked whether a name was given for an id.
const namePatience = 2 * time.Second

// nameless says of what is not there whether its name was given for its id: names are for
// people, and several can have the same.
func (a *app) nameless(ctx context.Context, c *cobra.Command, err error) error {
	name := c.Flags().Arg(0)
	if muster.CodeOf(err) != muster.NotFound || name == "" || isInstance(name) || isService(name) || !strings.Contains(err.Error(), quote(name)) {
		return err
	}
	api, failed := a.connect()
	if failed != nil {
		return err
	}
	defer func() { _ = api.Close() }()
	ctx, cancel := context.WithTimeout(ctx, namePatience)
	defer cancel()
	ids := named(ctx, api, c.CommandPath(), name)
	if len(ids) == 0 {
		return err
	}
	return muster.Errorf(muster.NotFound, "%s is the name of %s; give the id", quote(name), listed(ids, "and"))
}

// named are the ids of what has a name, and a command can be about.
func named(ctx context.Context, api *client.Client, command, name string) (ids []string) {
	any := command == "muster logs" || command == "muster why"
	if any || command == "muster exec" || strings.HasPrefix(command, "muster instance ") {
		for i, err := range api.AllInstances(ctx, &muster.InstanceFilter{Name: &name}) {
			if err == nil && i.Status != muster.Terminated {
				ids = append(ids, string(i.ID))
			}
		}
	}
	if any || strings.HasPrefix(command, "muster service ") {
		for s, err := range api.AllServices(ctx, &muster.ServiceFilter{Name: &name}) {
			if err == nil {
				ids = append(ids, string(s.ID))
			}
		}
	}
	return ids
}
