package registry

import (
	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/scheduler"
)

// PendingBecause returns why no node takes an instance that waits, as it is now and in the
// order of the nodes' ids, at most first of those that the caller sees. It is empty in the moment before one
// takes it, and nil when it does not wait.
func (s Seen) PendingBecause(i *muster.Instance, first *int) ([]*muster.Refusal, error) {
	limit, err := muster.PageInput{First: first}.Limit()
	if err != nil || i.Status != muster.Pending {
		return nil, err
	}
	v := s.view()
	need := v.need(i)
	ports := need.Refuse
	need.Refuse = func(n *muster.Node) string {
		if ports != nil {
			if reason := ports(n); reason != "" {
				return reason
			}
		}
		if s.r.freeAddress(v, n) == "" {
			return noAddress
		}
		return ""
	}
	out := []*muster.Refusal{}
	for refusal := range scheduler.Refusals(need, v.candidates(), s.r.opts.Scheduler) {
		if out = append(out, &refusal); len(out) == limit {
			break
		}
	}
	return out, nil
}
