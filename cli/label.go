package cli

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const labelHelp = "KEY=VALUE sets a label, KEY- removes one."

func (a *app) nodeLabelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "label NODE KEY=VALUE|KEY-...", Short: "Set and remove labels of a node", Args: atLeast(2, "what to label and at least one label"),
		Long: "Set and remove labels of a node. " + labelHelp + "\nThe edits are made on the agent's own labels and outlive its restarts.",
		RunE: func(c *cobra.Command, args []string) error {
			in, err := labelInput(args)
			if err != nil {
				return err
			}
			return a.withNode(c.Context(), func(w io.Writer, n *client.Node) { a.printLabels(w, string(n.ID), n.Labels) }, func(ctx context.Context, api *client.Client) (*client.Node, error) {
				return api.LabelNode(ctx, in)
			})
		},
	}
}

func (a *app) instanceLabelCommand() *cobra.Command {
	return &cobra.Command{
		Use: "label INSTANCE KEY=VALUE|KEY-...", Short: "Set and remove labels of an instance", Args: atLeast(2, "what to label and at least one label"),
		Long: "Set and remove labels of an instance. " + labelHelp,
		RunE: func(c *cobra.Command, args []string) error {
			in, err := labelInput(args)
			if err != nil {
				return err
			}
			return a.withInstance(c.Context(), func(w io.Writer, i *client.Instance) { a.printLabels(w, string(i.ID), i.Labels) }, func(ctx context.Context, api *client.Client) (*client.Instance, error) {
				return api.LabelInstance(ctx, in)
			})
		},
	}
}

func (a *app) instanceAdoptCommand() *cobra.Command {
	return &cobra.Command{
		Use: "adopt INSTANCE", Short: "Take an instance in that is UNKNOWN; terminate is the other choice", Args: exactly(1, "an instance's id, such as i-1"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withInstance(c.Context(), func(w io.Writer, i *client.Instance) { a.printInstances(w, []*client.Instance{i}) }, func(ctx context.Context, api *client.Client) (*client.Instance, error) {
				return api.AdoptInstance(ctx, muster.InstanceID(args[0]))
			})
		},
	}
}

// withInstance makes one call about an instance and prints the instance that it gives.
func (a *app) withInstance(ctx context.Context, print func(io.Writer, *client.Instance), call func(context.Context, *client.Client) (*client.Instance, error)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	i, err := call(ctx, c)
	if err != nil {
		return err
	}
	return a.write(i, func(w io.Writer) { print(w, i) })
}

func (a *app) printLabels(w io.Writer, id string, labels muster.Map) {
	t := &table{whole: []int{0, 1}}
	t.add("ID", "LABELS")
	t.add(id, pairs(labels))
	t.print(w)
}

// labelInput reads an id and edits.
func labelInput(args []string) (muster.LabelInput, error) {
	in := muster.LabelInput{ID: args[0], Set: muster.Map{}}
	for _, word := range args[1:] {
		if key, value, ok := strings.Cut(word, "="); ok {
			in.Set[key] = value
		} else if key, ok := strings.CutSuffix(word, "-"); ok && key != "" {
			in.Remove = append(in.Remove, key)
		} else {
			return in, muster.InvalidField("label", "%q is neither KEY=VALUE, which sets a label, nor KEY-, which removes one", word)
		}
	}
	return in, nil
}
