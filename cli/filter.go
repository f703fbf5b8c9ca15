package cli

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
)

// labelPrefix begins the keys of --filter that are labels: label.app=web.
const labelPrefix = "label."

// criterion is a key that a list can be narrowed by.
type criterion[F any] struct {
	key   string
	flag  string   // the help of a flag that is short for it; empty: there is none
	words []string // what its value can be, in any case; nil: any text
	many  bool     // several values: one of them has to match
	add   func(filter *F, value string)
}

// narrowing is --filter of a list, and the flags that are short for its keys.
type narrowing[F any] struct {
	criteria []criterion[F]
	label    func(filter *F, labels muster.Map) // nil: what is listed has no labels

	terms  []string
	short  map[string]*[]string // by key
	labels map[string]string
}

const filterHelp = "only what `KEY=VALUE` selects, with these keys: "

func (n *narrowing[F]) declare(f *pflag.FlagSet) {
	n.short = map[string]*[]string{}
	for _, c := range n.criteria {
		if c.flag == "" {
			continue
		}
		n.short[c.key] = new([]string)
		if c.many {
			f.StringSliceVar(n.short[c.key], c.key, nil, c.flag)
		} else {
			f.StringArrayVar(n.short[c.key], c.key, nil, c.flag)
		}
	}
	if n.label != nil {
		f.StringToStringVar(&n.labels, "label", nil, "only with the label `KEY=VALUE`; may be repeated")
	}
	f.StringSliceVar(&n.terms, "filter", nil, filterHelp+listed(n.keys(), "and")+"; separated by commas, may be repeated")
}

// keys are the keys of --filter, as people write them.
func (n *narrowing[F]) keys() []string {
	keys := make([]string, 0, len(n.criteria)+1)
	for _, c := range n.criteria {
		keys = append(keys, c.key)
	}
	if n.label != nil {
		keys = append(keys, labelPrefix+"KEY")
	}
	return keys
}

// choices are the values that the keys can have, nil where that is any text.
func (n *narrowing[F]) choices() map[string][]string {
	choices := map[string][]string{}
	for _, c := range n.criteria {
		choices[c.key] = c.words
	}
	return choices
}

// filter returns what all flags together select.
func (n *narrowing[F]) filter() (*F, error) {
	s := selection[F]{narrowing: n, filter: new(F), labels: muster.Map{}, given: map[string]string{}}
	for _, c := range n.criteria {
		if n.short[c.key] == nil {
			continue
		}
		for _, value := range *n.short[c.key] {
			if err := s.add("--"+c.key+" "+value, c.key, value); err != nil {
				return nil, err
			}
		}
	}
	for key, value := range n.labels {
		if err := s.add("--label "+key+"="+value, labelPrefix+key, value); err != nil {
			return nil, err
		}
	}
	for _, term := range n.terms {
		key, value, ok := strings.Cut(term, "=")
		if !ok {
			return nil, usageError("--filter: %s is not KEY=VALUE; KEY is %s", quote(term), listed(n.keys(), "or"))
		}
		if err := s.add("--filter "+term, strings.TrimSpace(key), value); err != nil {
			return nil, err
		}
	}
	if len(s.labels) > 0 {
		n.label(s.filter, s.labels)
	}
	return s.filter, nil
}

// selection is a filter in the making.
type selection[F any] struct {
	*narrowing[F]
	filter *F
	labels muster.Map
	given  map[string]string // by key, as it was written
}

// add narrows by one value; written is how the person wrote it.
func (s *selection[F]) add(written, key, value string) error {
	if label, ok := strings.CutPrefix(key, labelPrefix); ok && s.label != nil {
		if label == "" {
			return usageError("%s: the label's key is missing; write such as label.app=web", cut(oneLine(written), 80))
		}
		s.labels[label] = value
		return s.once(written, key)
	}
	at := slices.IndexFunc(s.criteria, func(c criterion[F]) bool { return c.key == key })
	if at < 0 {
		return usageError("--filter: there is no key %s; use %s", quote(key), listed(s.keys(), "or"))
	}
	c := s.criteria[at]
	if c.words != nil {
		word := slices.IndexFunc(c.words, func(word string) bool { return strings.EqualFold(word, value) })
		if word < 0 {
			return usageError("%s: %s is no %s; use %s", cut(oneLine(written), 80), quote(value), key, listed(c.words, "or"))
		}
		value = c.words[word]
	}
	if value == "" {
		return usageError("%s: the value is missing", cut(oneLine(written), 80))
	}
	c.add(s.filter, value)
	if c.many {
		return nil
	}
	return s.once(written, key)
}

// once refuses a second value where only one can match.
func (s *selection[F]) once(written, key string) error {
	if before, twice := s.given[key]; twice {
		return usageError("%s: %s is given already, with %s; give one of them", cut(oneLine(written), 80), key, cut(oneLine(before), 80))
	}
	s.given[key] = written
	return nil
}

// listed writes words as people do: a, b or c.
func listed(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " " + last + " " + words[len(words)-1]
}

// texts are the words of an enumeration.
func texts[S ~string](values []S) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

func nodeNarrowing() *narrowing[muster.NodeFilter] {
	type filter = muster.NodeFilter
	return &narrowing[filter]{
		criteria: []criterion[filter]{
			{
				key: "status", flag: "only in this `STATUS`; may be repeated", words: texts(liveNodeStatuses()), many: true,
				add: func(f *filter, v string) { f.Status = append(f.Status, muster.NodeStatus(v)) },
			},
			{key: "role", words: texts(nodeRoles()), add: func(f *filter, v string) { role := muster.NodeRole(v); f.Role = &role }},
			{
				key: "schedulable", words: []string{"true", "false"},
				add: func(f *filter, v string) { yes := v == "true"; f.Schedulable = &yes },
			},
		},
		label: func(f *filter, labels muster.Map) { f.Labels = labels },
	}
}

// liveNodeStatuses are those that a node of a list can have.
func liveNodeStatuses() []muster.NodeStatus {
	return []muster.NodeStatus{muster.Healthy, muster.Unhealthy}
}

func nodeRoles() []muster.NodeRole { return []muster.NodeRole{muster.Compute, muster.ServiceRole} }

func instanceNarrowing() *narrowing[muster.InstanceFilter] {
	type filter = muster.InstanceFilter
	return &narrowing[filter]{
		criteria: []criterion[filter]{
			{
				key: "status", flag: "only in this `STATUS`; may be repeated", words: texts(muster.InstanceStatuses()), many: true,
				add: func(f *filter, v string) { f.Status = append(f.Status, muster.InstanceStatus(v)) },
			},
			{key: "node", flag: "only on this `NODE`, by id or uid", add: func(f *filter, v string) { f.NodeID = &v }},
			{
				key: "type", flag: "only of this `TYPE`", words: instanceTypes(),
				add: func(f *filter, v string) { size := muster.InstanceType(v); f.Type = &size },
			},
			{key: "name", flag: "only of this `NAME`", add: func(f *filter, v string) { f.Name = &v }},
		},
		label: func(f *filter, labels muster.Map) { f.Labels = labels },
	}
}

func instanceTypes() []string {
	var names []string
	for _, t := range muster.InstanceTypes() {
		names = append(names, string(t.Type))
	}
	return names
}

func serviceNarrowing() *narrowing[muster.ServiceFilter] {
	type filter = muster.ServiceFilter
	return &narrowing[filter]{criteria: []criterion[filter]{
		{
			key: "status", flag: "only in this `STATUS`; may be repeated", words: texts(muster.ServiceStatuses()), many: true,
			add: func(f *filter, v string) { f.Status = append(f.Status, muster.ServiceStatus(v)) },
		},
		{
			key: "health", flag: "only in this `HEALTH`; may be repeated", words: texts(serviceHealths()), many: true,
			add: func(f *filter, v string) { f.Health = append(f.Health, muster.ServiceHealth(v)) },
		},
		{key: "name", flag: "only of this `NAME`", add: func(f *filter, v string) { f.Name = &v }},
		{
			key: "instance", flag: "only in this `INSTANCE`",
			add: func(f *filter, v string) { f.InstanceID = new(muster.InstanceID(v)) },
		},
		{key: "node", flag: "only on this `NODE`, by id or uid", add: func(f *filter, v string) { f.NodeID = &v }},
	}}
}

func serviceHealths() []muster.ServiceHealth {
	return []muster.ServiceHealth{muster.HealthOK, muster.HealthWarning, muster.HealthBad, muster.HealthUnknown}
}
