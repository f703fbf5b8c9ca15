package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// rule is what was decided about a field of the schema. It is written by hand and not
// taken from the schema: where the two differ, one of them is wrong.
type rule struct {
	open    string               // the callers that are let through; FORBIDDEN for the others
	own     func(w *town) string // the field with arguments and selection, about what is in the scope
	outside func(w *town) string // the same about what is outside of it; nil: there is no such thing
	hidden  string               // those of open that do not get what is outside
	says    string               // what they get: a code, null or unseen
	absent  bool                 // own is about something that there is not
}

// What hidden callers get when it is not a code.
const (
	null   = "null"   // no such object
	unseen = "unseen" // the list leaves it out
)

// passes are the codes of an answer to a caller who was let through: the object's state
// may not allow it, or its agent is not there.
func passes() []string { return []string{"", "CONFLICT", "UNAVAILABLE"} }

// The schema's every field has a rule here, and every rule its field.
func TestMatrix_Fields(t *testing.T) {
	w := newTown(t)
	kinds := map[string]map[string]rule{"query": queries(), "mutation": mutations(), "subscription": subscriptions()}
	for kind, rules := range kinds {
		names := w.rootFields(kind)
		for name := range rules {
			if !slices.Contains(names, name) {
				t.Errorf("%s %s has a rule here, and is not in the schema", kind, name)
			}
		}
		for _, name := range names {
			rule, ok := rules[name]
			if !ok {
				t.Errorf("%s %s is new: decide who may use it, and write its rule down here", kind, name)
				continue
			}
			t.Run(kind+" "+name, func(t *testing.T) { w.check(t, kind, name, rule) })
		}
	}
}

// rootFields are those of the schema that is served.
func (w *town) rootFields(kind string) []string {
	w.t.Helper()
	a := w.ask(admin, fmt.Sprintf(`{ __schema { %sType { fields { name } } } }`, kind))
	var names []string
	for _, f := range a.data["__schema"].(map[string]any)[kind+"Type"].(map[string]any)["fields"].([]any) {
		names = append(names, f.(map[string]any)["name"].(string))
	}
	return names
}

func (w *town) check(t *testing.T, kind, name string, r rule) {
	defer func(before *testing.T) { w.t = before }(w.t)
	w.t = t
	for _, caller := range strings.Split(everybody, "") {
		open := strings.Contains(r.open, caller)
		got := w.outcome(kind, name, caller, r.own(w))
		if r.absent && (got == null || got == "NOT_FOUND") {
			got = ""
		}
		switch {
		case open && !slices.Contains(passes(), got):
			t.Errorf("%s is let through, and got %s", caller, got)
		case !open && got != "FORBIDDEN":
			t.Errorf("%s is not let through, and got %q", caller, got)
		}
		if r.outside == nil || !open {
			continue
		}
		got = w.outcome(kind, name, caller, r.outside(w))
		want := ""
		if strings.Contains(r.hidden, caller) {
			want = r.says
		}
		if got != want && (want != "" || !slices.Contains(passes(), got)) {
			t.Errorf("%s got %q of what is outside, want %q", caller, got, want)
		}
	}
	for _, stranger := range strangers() {
		if kind == "subscription" {
			if got := w.stream(stranger, "subscription { "+r.own(w)+" }"); !strings.Contains(got, "close 4403") {
				t.Errorf("%s got %q", stranger, got)
			}
			continue
		}
		a := w.ask(stranger, kind+" { "+r.own(w)+" }")
		if a.status != http.StatusUnauthorized || a.code != "UNAUTHENTICATED" || a.data != nil {
			t.Errorf("%s got %+v", stranger, a)
		}
	}
}

// outcome is what a caller gets: the code of the error, null, unseen, or "" for the rest.
func (w *town) outcome(kind, name, caller, field string) string {
	if kind == "subscription" {
		return w.stream(caller, "subscription { "+field+" }")
	}
	a := w.ask(caller, kind+" { "+field+" }")
	switch {
	case a.code != "":
		return a.code
	case a.status != http.StatusOK:
		return fmt.Sprint(a.status)
	case a.data[name] == nil:
		return null
	case kind == "query" && strings.Contains(field, "edges") && !w.showsOutside(a.body):
		return unseen
	}
	return ""
}

// showsOutside reports whether an answer has anything of what is outside of the scope.
func (w *town) showsOutside(body string) bool {
	for _, id := range []string{"foreign uid", "foreign instance", "foreign service"} {
		if strings.Contains(body, `"`+w.ids[id]+`"`) {
			return true
		}
	}
	return false
}
