package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
)

// feedCheck is what doctor can be told of the discovery feed.
type feedCheck struct{ verify, repair bool }

func (k *feedCheck) declare(f *pflag.FlagSet) {
	f.BoolVar(&k.verify, "verify-feed", false, "examine the discovery feed instead: does it hold what this cluster has in it?")
	f.BoolVar(&k.repair, "repair", false, "--verify-feed: put right what differs")
}

// verifyFeed prints what differs in the discovery feed. What differs and stays ends with
// exitDegraded.
func (a *app) verifyFeed(ctx context.Context, repair bool) error {
	api, err := a.connect()
	if err != nil {
		return err
	}
	findings, err := api.VerifyFeed(ctx, repair)
	if err != nil {
		return err
	}
	if findings == nil {
		findings = []muster.FeedFinding{}
	}
	if err := a.write(findings, func(w io.Writer) { a.printFeed(w, findings, repair) }); err != nil {
		return err
	}
	if len(findings) > 0 && !repair {
		return exitStatus(exitDegraded)
	}
	return nil
}

func (a *app) printFeed(w io.Writer, findings []muster.FeedFinding, repaired bool) {
	if len(findings) == 0 {
		_, _ = fmt.Fprintln(w, "the discovery feed holds what it should")
		return
	}
	t := &table{paint: a.painter(), whole: []int{0, 1}}
	t.add("SUBJECT", "DAMAGE")
	for _, f := range findings {
		t.add(f.Subject, f.Damage)
	}
	t.print(w)
	if repaired {
		a.say("%s put right", counted(len(findings), "subject"))
		return
	}
	a.say("%s not as it should be; put right what differs with --repair", counted(len(findings), "subject"))
}
