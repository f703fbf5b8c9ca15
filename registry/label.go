package registry

import (
	"context"
	"maps"

	"github.com/muster-cloud/muster"
)

// LabelNode edits a node's labels. The edits outlive new registrations of its
// agent, whose own labels they are made on.
func (r *Registry) LabelNode(ctx context.Context, in muster.LabelInput) (*muster.Node, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	return r.changeNode(ctx, in.ID, func(_ View, w *Writes, n *muster.Node) (*muster.Node, error) {
		after := n.Clone()
		if after.LabelEdits == nil {
			after.LabelEdits = muster.Edits{}
		}
		maps.Copy(after.LabelEdits, edits(in))
		after.Labels = after.AgentLabels.Edited(after.LabelEdits)
		if err := muster.CheckMap("set", after.Labels); err != nil {
			return nil, err
		}
		if maps.Equal(after.Labels, n.Labels) {
			return n, nil
		}
		w.Node(after, "labelled by "+muster.PrincipalOf(ctx).Name)
		return after, nil
	})
}

// LabelInstance edits an instance's labels.
func (r *Registry) LabelInstance(ctx context.Context, in muster.LabelInput) (*muster.Instance, int64, error) {
	if err := in.Validate(); err != nil {
		return nil, 0, err
	}
	return r.changeInstance(ctx, muster.InstanceID(in.ID), func(_ View, w *Writes, i *muster.Instance) (*muster.Instance, error) {
		after := i.Clone()
		after.Labels = i.Labels.Edited(edits(in))
		if err := muster.CheckMap("set", after.Labels); err != nil {
			return nil, err
		}
		if maps.Equal(after.Labels, i.Labels) {
			return i, nil
		}
		w.Instance(after, "labelled by "+muster.PrincipalOf(ctx).Name)
		return after, nil
	})
}

func edits(in muster.LabelInput) muster.Edits {
	out := muster.Edits{}
	for k, v := range in.Set {
		out[k] = &v
	}
	for _, k := range in.Remove {
		out[k] = nil
	}
	return out
}
