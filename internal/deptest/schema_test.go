package deptest_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
)

func loadSchema(t *testing.T) *ast.Schema {
	t.Helper()
	text, err := os.ReadFile(root + "/schema.graphqls")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: "schema.graphqls", Input: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// own returns the types that our schema declares.
func own(t *testing.T) map[string]*ast.Definition {
	t.Helper()
	types := map[string]*ast.Definition{}
	for name, d := range loadSchema(t).Types {
		if !d.BuiltIn && !strings.HasPrefix(name, "__") {
			types[name] = d
		}
	}
	if len(types) < 10 {
		t.Fatalf("only %d types were found", len(types))
	}
	return types
}

// ownFields returns the fields that our schema declares on a type.
func ownFields(d *ast.Definition) ast.FieldList {
	var fields ast.FieldList
	for _, f := range d.Fields {
		if !strings.HasPrefix(f.Name, "__") {
			fields = append(fields, f)
		}
	}
	return fields
}

func TestSchema_EverythingIsDescribed(t *testing.T) {
	described := func(what, text string) {
		if strings.TrimSpace(text) == "" {
			t.Errorf("%s has no description", what)
		}
	}
	for name, d := range own(t) {
		described(name, d.Description)
		for _, f := range ownFields(d) {
			described(name+"."+f.Name, f.Description)
			for _, a := range f.Arguments {
				described(name+"."+f.Name+"("+a.Name+")", a.Description)
			}
		}
		for _, v := range d.EnumValues {
			described(name+"."+v.Name, v.Description)
		}
	}
}

func TestSchema_Names(t *testing.T) {
	upperSnake := regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)*$`)
	upperCamel := regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	lowerCamel := regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
	for name, d := range own(t) {
		if !upperCamel.MatchString(name) {
			t.Errorf("type %s is not UpperCamel", name)
		}
		for _, f := range ownFields(d) {
			if !lowerCamel.MatchString(f.Name) {
				t.Errorf("%s.%s is not lowerCamel", name, f.Name)
			}
		}
		for _, v := range d.EnumValues {
			if !upperSnake.MatchString(v.Name) {
				t.Errorf("%s.%s is not UPPER_SNAKE", name, v.Name)
			}
		}
	}
}

func TestSchema_RootFieldsNameARole(t *testing.T) {
	types := own(t)
	for _, name := range []string{"Query", "Mutation", "Subscription"} {
		fields := ownFields(types[name])
		if len(fields) == 0 {
			t.Errorf("%s has no fields", name)
		}
		for _, f := range fields {
			if f.Directives.ForName("auth") == nil {
				t.Errorf("%s.%s has no @auth: say who may use it", name, f.Name)
			}
		}
	}
}

func TestSchema_Mutations(t *testing.T) {
	types := own(t)
	for _, f := range ownFields(types["Mutation"]) {
		noun := strings.ToUpper(f.Name[:1]) + f.Name[1:]
		if len(f.Arguments) != 1 || f.Arguments[0].Name != "input" || f.Arguments[0].Type.String() != noun+"Input!" {
			t.Errorf("%s must take exactly `input: %sInput!`", f.Name, noun)
		}
		if got := f.Type.String(); got != noun+"Payload" {
			t.Errorf("%s returns %s, must return a nullable %sPayload", f.Name, got, noun)
			continue
		}
		// These commit nothing: they have no revision of their own.
		volatile := slices.Contains([]string{"heartbeat", "answerAgentRequest", "renewCertificate", "createSignIn", "reportCheck", "verifyFeed"}, f.Name)
		if !volatile && types[noun+"Payload"].Fields.ForName("revision") == nil {
			t.Errorf("%sPayload has no revision", noun)
		}
	}
}

func TestSchema_Lists(t *testing.T) {
	for name, d := range own(t) {
		for _, f := range ownFields(d) {
			if !strings.HasSuffix(f.Type.Name(), "Connection") {
				continue
			}
			if first := f.Arguments.ForName("first"); first == nil || first.DefaultValue == nil || first.DefaultValue.Raw != "20" {
				t.Errorf("%s.%s is a connection and must take `first: Int = 20`", name, f.Name)
			}
			if f.Arguments.ForName("after") == nil && f.Arguments.ForName("since") == nil {
				t.Errorf("%s.%s is a connection and must take `after`, or `since` on the change log", name, f.Name)
			}
		}
		if strings.HasSuffix(name, "Connection") && (d.Fields.ForName("edges") == nil || d.Fields.ForName("pageInfo") == nil) {
			t.Errorf("%s has no edges and pageInfo", name)
		}
	}
}

func TestSchema_Subscriptions(t *testing.T) {
	types := own(t)
	for _, f := range ownFields(types["Subscription"]) {
		if !strings.HasSuffix(f.Name, "Changes") {
			if f.Arguments.ForName("since") != nil { // the transport tells the two kinds apart by it
				t.Errorf("subscription %s takes `since`: it must follow the change log and end in Changes", f.Name)
			}
			continue
		}
		if since := f.Arguments.ForName("since"); since == nil || since.Type.String() != "Cursor" {
			t.Errorf("%s must take `since: Cursor`", f.Name)
		}
		if initial := f.Arguments.ForName("initial"); initial == nil || initial.DefaultValue == nil || initial.DefaultValue.Raw != "true" {
			t.Errorf("%s must take `initial: Boolean = true`", f.Name)
		}
		for _, field := range []string{"cursor", "revision", "at", "kind", "reason", "actor", "previousStatus"} {
			if types[f.Type.Name()].Fields.ForName(field) == nil {
				t.Errorf("%s has no %s", f.Type.Name(), field)
			}
		}
	}
}

func TestSchema_DeprecationsHaveADate(t *testing.T) {
	date := regexp.MustCompile(`\d{4}-\d{2}-\d{2}`)
	for name, d := range own(t) {
		for _, f := range ownFields(d) {
			if mark := f.Directives.ForName("deprecated"); mark != nil {
				reason := mark.Arguments.ForName("reason")
				if reason == nil || !date.MatchString(reason.Value.Raw) {
					t.Errorf("%s.%s is deprecated without the date from which it may go", name, f.Name)
				}
			}
		}
	}
}
