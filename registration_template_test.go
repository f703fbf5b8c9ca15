package muster_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

func TestRegistrationSpec_Templates(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		says string // empty: it is taken
	}{
		"a field":                {"{{ .Node.ID }}", ""},
		"a label":                {"{{ .Node.Labels.zone }}", ""},
		"a condition":            {`{{ if eq .Node.Labels.zone "a" }}near{{ else if not .Service.Port }}no{{ else }}far{{ end }}`, ""},
		"with":                   {`{{ with .Node.Labels.zone }}{{ . }} of {{ $.Node.ID }}{{ else }}none{{ end }}`, ""},
		"an index":               {`{{ index .Instance.Labels "a.b" | len }}`, ""},
		"a method":               {`{{ (.Instance.CreatedAt.UTC).Year }}`, ""},
		"a comment":              {`{{/* nothing */}}`, ""},
		"braces that are closed": {`}} {`, ""},
		"half of one":            {"{{ .Node.ID", "no template"},
		"a function of no one":   {"{{ getenv \"HOME\" }}", "no template"},
		"a loop without end":     {"{{ range 9223372036854775807 }}{{ end }}", "range"},
		"a loop within":          {"{{ if true }}{{ with 1 }}{{ range 10 }}x{{ end }}{{ end }}{{ end }}", "range"},
		"a wide number":          {`{{ printf "%1000000d" 1 }}`, "printf"},
		"a wide one in a pipe":   {`{{ if (1 | printf "%1000000d" | len) }}{{ end }}`, "printf"},
		"itself":                 {`{{ define "x" }}{{ template "x" }}{{ end }}`, "a template of its own"},
		"one that calls itself":  {`{{ template "template" }}`, "template"},
		"a variable":             {`{{ $x := "xxxxxxxx" }}{{ $x }}`, "$x"},
		"a call":                 {`{{ call .Node.Clone }}`, "call"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := muster.RegistrationSpec{Cluster: "c", Protocol: "http", Annotations: muster.Map{"a": c.text}}
			err := spec.Validate("entry")
			refused, _ := errors.AsType[*muster.Error](err)
			switch {
			case c.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.says != "" && (refused == nil || refused.Field != "entry.annotations.a" || !strings.Contains(err.Error(), c.says)):
				t.Errorf("got %v, want something about %q", err, c.says)
			}
			if _, err := (muster.EntryFacts{}).FillIn("a", c.text); c.says != "" && err == nil {
				t.Error("it is filled in all the same")
			}
		})
	}
	address := muster.RegistrationSpec{Cluster: "c", Protocol: "http", Address: "{{ .Node.Addr }}"}
	if err := address.Validate("entry"); err != nil {
		t.Errorf("an address: %v", err)
	}
	address.Address = "{{ range 3 }}1{{ end }}"
	if e, ok := errors.AsType[*muster.Error](address.Validate("entry")); !ok || e.Field != "entry.address" {
		t.Errorf("an address that is odd: %+v", e)
	}
}

func TestEntryFacts_FillIn(t *testing.T) {
	facts := muster.EntryFacts{Node: &muster.Node{ID: "n1", Labels: muster.Map{"zone": "a"}}, Instance: &muster.Instance{}, Service: &muster.Service{StatusReason: strings.Repeat("x", 1000)}}
	for text, want := range map[string]string{
		"plain": "plain", "{{ .Node.ID }}/{{ .Node.Labels.zone }}": "n1/a", "{{/* nothing */}}": "",
	} {
		if got, err := facts.FillIn("a", text); err != nil || got != want {
			t.Errorf("%s: got %q, %v", text, got, err)
		}
	}
	for text, says := range map[string]string{
		"{{ .Node.Labels.rack }}": "no entry", "{{ .Nod.ID }}": "Nod", "{{ .Service.Publish.Port }}": "nil pointer",
		strings.Repeat("{{ .Service.StatusReason }}", 33): "too long",
	} {
		if got, err := facts.FillIn("a", text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: got %.40q, %v; want something about %q", text, got, err, says)
		}
	}
}
