package cli

import (
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/render"
	"github.com/muster-cloud/muster/registration"
)

const registrationPrometheusLong = `Write a file for Prometheus' file_sd_configs with the entries that it should scrape, once
or, with --watch, again after each change. With none it is an empty list.

In are entries whose service or protocol is prometheus, unless their annotation
prometheus.io/scrape says otherwise, and all others where that is true. The file is replaced
as a whole and guarded as those of muster render are, and ends with the same exit codes.`

func (a *app) registrationPrometheusCommand() *cobra.Command {
	which := registrationNarrowing()
	var keep keeping
	var target render.Target
	c := &cobra.Command{
		Use: "prometheus -o FILE", Short: "Write targets for Prometheus into a file", Long: registrationPrometheusLong,
		Example: "  muster registration prometheus -o /etc/prometheus/targets/muster.json --watch",
		Args:    exactly(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			if target.Output == "" {
				return usageError("name the file to write with -o")
			}
			target.Content = prometheusTargets(*filter)
			return a.renderProblem(a.keepFiles(c.Context(), []render.Target{target}, keep.over(c.Flags(), render.Options{}), &keep))
		},
	}
	which.declare(c.Flags())
	c.Flags().StringVarP(&target.Output, "output", "o", "", "`FILE` to write")
	declareGuard(c.Flags(), &target)
	keep.declare(c.Flags())
	return c
}

// prometheusTargets makes what a lookup finds a file of targets; the guard counts those.
func prometheusTargets(f muster.RegistrationFilter) render.Content {
	return func(a *render.Answer) ([]byte, render.Calls, error) {
		found, err := a.Select(f)
		if err != nil {
			return nil, nil, err
		}
		entries := make([]registration.Target, len(found))
		for i, e := range found {
			entries[i].Registration = &e.Registration
		}
		text, err := registration.Prometheus(entries)
		if err != nil {
			return nil, nil, err
		}
		var groups []struct{ Targets []string }
		if err := json.Unmarshal(text, &groups); err != nil {
			return nil, nil, err
		}
		targets := 0
		for _, g := range groups {
			targets += len(g.Targets)
		}
		calls := render.Calls{}
		calls.Note(f, targets)
		return text, calls, nil
	}
}
