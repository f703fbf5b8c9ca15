package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// watched is what a stream asks for, and the same said once more, without the
// registry's code.
type watched struct {
	field  string
	filter map[string]any
	// wants tells of an object as it is after a row, or as it is now, whether it
	// matches the filter.
	wants func(*row) bool
}

// everyWatched are the streams that the clients choose from, for nodes by uid.
func everyWatched(nodes []string) []watched {
	node := func(r *row) bool { return r.kind == "NODE" }
	instance := func(r *row) bool { return r.kind == "INSTANCE" }
	running := func(r *row) bool { return instance(r) && r.own.Status == "RUNNING" }
	even := func(r *row) bool { return node(r) && r.own.Labels["half"] == "even" && r.own.Status == "HEALTHY" }
	every := []watched{
		{"nodeChanges", nil, node},
		{"instanceChanges", nil, instance},
		{"healthChanges", nil, func(*row) bool { return true }},
		{"nodeChanges", map[string]any{"schedulable": true}, func(r *row) bool { return node(r) && r.own.Schedulable }},
		{"nodeChanges", map[string]any{"labels": map[string]string{"half": "even"}, "status": []string{"HEALTHY"}}, even},
		{"instanceChanges", map[string]any{"status": []string{"RUNNING"}}, running},
		{"instanceChanges", map[string]any{"status": []string{"FAILED", "LOST"}}, func(r *row) bool { return instance(r) && (r.own.Status == "FAILED" || r.own.Status == "LOST") }},
		{"healthChanges", map[string]any{"kinds": []string{"NODE", "CLUSTER"}}, func(r *row) bool { return !instance(r) }},
	}
	for _, uid := range nodes {
		on := func(r *row) bool { return instance(r) && r.own.NodeUID == uid }
		every = append(every,
			watched{"instanceChanges", map[string]any{"nodeId": uid}, on},
			watched{"instanceChanges", map[string]any{"nodeId": uid, "status": []string{"RUNNING"}}, func(r *row) bool { return on(r) && running(r) }},
			watched{"healthChanges", map[string]any{"nodeId": uid}, func(r *row) bool { return on(r) || node(r) && r.object == uid }},
			watched{"healthChanges", map[string]any{"nodeId": uid, "kinds": []string{"INSTANCE"}}, on},
		)
	}
	return every
}

// document is the subscription, with everything that is compared.
func (w watched) document() string {
	object, input := "node { id uid status schedulable revision }", "NodeFilter"
	switch w.field {
	case "instanceChanges":
		object, input = "instance { id status generation revision }", "InstanceFilter"
	case "healthChanges":
		object += " instance { id status generation revision } condition { name status }"
		input = "HealthFilter"
	}
	return fmt.Sprintf(`subscription Watch($since: Cursor, $initial: Boolean, $filter: %s) { %s(since: $since, initial: $initial, filter: $filter) { type cursor revision at kind reason actor previousStatus status left %s } }`,
		input, w.field, object)
}

func (w watched) String() string { return fmt.Sprintf("%s%v", w.field, w.filter) }

// tells says whether a stream is told of a row, and whether because the object
// has left what it selects.
func (w watched) tells(r *row) (deliver, left bool) {
	if w.field == "healthChanges" {
		return w.wants(r) && (r.status != r.previousStatus || r.deleted), r.deleted
	}
	now, was := w.wants(r) && !r.deleted, r.before != nil && w.wants(r.before)
	return now || was, !now
}

// told is one change that a stream is told of.
type told struct {
	revision int64
	line     string
}

// expected is all that a stream that was there from the beginning is told.
func (w watched) expected(o *oracle, rows []*row) []told {
	var all []told
	for _, r := range rows {
		if deliver, left := w.tells(r); deliver {
			all = append(all, told{r.revision, o.line(r, left)})
		}
	}
	return all
}

// state is what matches at a revision: each object's status and newest revision.
func (w watched) state(rows []*row, revision int64) map[string]string {
	state := map[string]string{}
	for _, r := range rows[:revision] {
		delete(state, r.object)
		if !r.deleted && w.wants(r) && (r.kind != "CLUSTER" || r.status == "HOLDS") {
			state[r.object] = fmt.Sprintf("%s at %d", r.status, r.own.Revision)
		}
	}
	return state
}

// showState writes a state in order, to be compared and read.
func showState(state map[string]string) string {
	var b strings.Builder
	for _, object := range slices.Sorted(maps.Keys(state)) {
		fmt.Fprintf(&b, "%s %s; ", object, state[object])
	}
	return b.String()
}
