package render_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli/render"
	"github.com/muster-cloud/muster/client"
)

// answer is of these entries.
func answer(entries ...*client.Entry) *render.Answer {
	return render.AnswerOf(&client.Entries{Entries: entries, Complete: true})
}

func execute(t *testing.T, text string, entries ...*client.Entry) (string, error) {
	t.Helper()
	out, _, err := keep(t, "").template(text)(answer(entries...))
	return string(out), err
}

func TestTemplate_SeesEntriesInOrder(t *testing.T) {
	low := at("10.0.0.9")
	low.Port = nil
	six := at("2001:db8::5")
	ten := at("10.0.0.10")
	ten.Annotations = &muster.Map{"weight": "7", "odd": "a;b"}
	got, err := execute(t, `{{ range registrations "*" "http" "web" "*" -}}
{{ .HostPort }} {{ .Host }} {{ .Port }} {{ .IPv6 }} [{{ .Annotations.weight }}{{ .Annotations.none }}] {{ word "x" .Annotations.odd }}
{{ end }}`, six, ten, low)
	want := `10.0.0.9 10.0.0.9 0 false [] x
10.0.0.10:8080 10.0.0.10 8080 false [7] x
[2001:db8::5]:8080 [2001:db8::5] 8080 true [] x
`
	if err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTemplate_SelectsAndPrefers(t *testing.T) {
	best, spare, stale := entry(1), entry(2), entry(3)
	best.Priority, stale.Priority, stale.Status, stale.Stale = 10, 1, muster.EntryStale, true
	db := entry(4)
	db.Service, db.Key = "db", "db"
	all := []*client.Entry{best, spare, stale, db}
	for text, want := range map[string]string{
		`{{ range registrations "prod" "http" "web" "*" }}{{ .Address }} {{ end }}`:             "10.0.0.1 10.0.0.2 10.0.0.3 ",
		`{{ range registrations "prod" "http" "web" "*" "preferred" }}{{ .Address }} {{ end }}`: "10.0.0.1 ",
		`{{ range registrations "*" "*" "*" "10.0.0.4" "optional" }}{{ .Service }}{{ end }}`:    "db",
		`{{ range registrations "test" "*" "*" "*" }}{{ .Service }}{{ else }}none{{ end }}`:     "none",
		`{{ join "," (services "prod" "*") }}`:                                                  "db,web",
		`{{ join "," (keys (dict "c" 1 "a" 2 "b" 3)) }}{{ values (dict "c" 1 "a" 2 "b" 3) }}`:   "a,b,c[2 3 1]",
		`{{ oneLine "a\n} b" }}{{ word "w" "a b" }}{{ word "w" "a.b-c" }}`:                      "a } bwa.b-c",
	} {
		if got, err := execute(t, text, all...); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

// What a template cannot say twice the same, or must not read, is not there.
func TestTemplate_HasNoFunctionOf(t *testing.T) {
	for _, name := range []string{
		"env", "expandenv", "getHostByName", "now", "uuidv4", "randAlpha", "randBytes", "randInt", "shuffle", "genPrivateKey", "htpasswd", "bcrypt", "ago",
	} {
		path := filepath.Join(t.TempDir(), "t")
		if err := os.WriteFile(path, []byte("{{ "+name+" }}"), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := render.ReadTemplate(path)
		refused(t, err, render.BadTemplate, "not defined")
	}
}

func TestTemplate_SaysWhatIsWrong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nginx.tmpl")
	_, err := render.ReadTemplate(path)
	refused(t, err, render.BadTemplate, "cannot be read", path)
	if err := os.WriteFile(path, []byte("x\n{{ range }}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = render.ReadTemplate(path)
	refused(t, err, render.BadTemplate, "cannot be parsed", "nginx.tmpl:2")
	for text, words := range map[string][]string{
		"\n{{ fail `it is full` }}":                                     {"template:2", "it is full"},
		`{{ registrations "prod" "http" }}`:                             {"takes a cluster, a protocol, a service and an address"},
		`{{ registrations "prod" "http" "web" "*" "best" }}`:            {`"preferred" or "optional", not "best"`},
		`{{ registrations "pr od" "http" "web" "*" }}`:                  {"pr od", "is no name"},
		`{{ registrations "prod" "http" "web" "10.0.0" }}`:              {"is no IP address"},
		`{{ services "prod" }}`:                                         {"takes a cluster and a protocol"},
		`{{ range registrations "*" "*" "*" "*" }}{{ .Nope }}{{ end }}`: {"Nope"},
		`{{ mod 1 0 }}`: {"divide by zero"},
		`{{ range until 70 }}{{ repeat 1000000 "x" }}{{ end }}`: {"64 MiB"},
	} {
		k := keep(t, text)
		want := "before\n"
		if err := os.WriteFile(k.path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		k.source.set(entry(1))
		refused(t, k.once(), render.BadTemplate, append(words, "the template failed")...)
		if k.read() != want {
			t.Errorf("%s: the file has changed", text)
		}
	}
}

func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("a.tmpl", "a")
	targets, o, err := render.ReadConfig(write("good.yaml", `
quiet: 250ms
targets:
  - {template: a.tmpl, output: a.conf, check: "true", timeout: 5s, maxShrink: 20}
  - template: a.tmpl
    output: /elsewhere/b.conf
    allowEmpty: true
`))
	if err != nil || len(targets) != 2 || o.Quiet.String() != "250ms" {
		t.Fatal(targets, o, err)
	}
	if a := targets[0]; a.Output != dir+"/a.conf" || a.Check != "true" || a.Timeout.String() != "5s" || a.MaxShrink != 20 {
		t.Errorf("%+v", a)
	}
	if b := targets[1]; b.Output != "/elsewhere/b.conf" || !b.AllowEmpty {
		t.Errorf("%+v", b)
	}
	for text, word := range map[string]string{
		"":                         "targets",
		"targets: [{output: x}]":   "template",
		"target: []":               "target",
		"quiet: soon\ntargets: []": `"soon" is no time`,
		"{":                        "bad.yaml",
		"targets: [{template: a.tmpl, output: x}, {template: a.tmpl, output: x}]": "twice",
	} {
		if _, _, err := render.ReadConfig(write("bad.yaml", text)); muster.CodeOf(err) != muster.Invalid || !strings.Contains(err.Error(), word) {
			t.Errorf("%q: %v", text, err)
		}
	}
	_, _, err = render.ReadConfig(write("none.yaml", "targets: [{template: b.tmpl, output: x}]"))
	refused(t, err, render.BadTemplate, "b.tmpl")
}
