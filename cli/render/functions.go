package render

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"unicode"

	"github.com/Masterminds/sprig/v3"

	"github.com/muster-cloud/muster"
)

// changing are functions of sprig that say something else each time, so that a file would
// never stay as it is; those that read the environment or ask a name server are left out
// with sprig's own list.
var changing = []string{
	"ago", "shuffle", "randInt", "bcrypt", "htpasswd", "genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert",
	"genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey", "encryptAES", "date_modify", "must_date_modify", "mustDateModify",
}

// plainWord is what no configuration language takes for anything but a word.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~/@:+-]*$`)

// functions returns those that every template has.
func functions() template.FuncMap {
	all := sprig.HermeticTxtFuncMap()
	for _, name := range changing {
		delete(all, name)
	}
	all["keys"], all["values"] = keys, values // sprig's are in any order
	all["word"], all["oneLine"] = word, oneLine
	// What the lookups of a run answer is known when it runs.
	all["registrations"] = func(...string) ([]Entry, error) { return nil, nil }
	all["services"] = func(...string) ([]string, error) { return nil, nil }
	return all
}

// word returns text if it is a plain word, and the fallback otherwise: what strangers wrote
// can then not end a line or a block.
func word(fallback, text string) string {
	if plainWord.MatchString(text) {
		return text
	}
	return fallback
}

// oneLine returns text without what could end a comment.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text)
}

func keys(maps ...map[string]any) []string {
	var out []string
	for _, m := range maps {
		out = append(out, sortedKeys(m)...)
	}
	return out
}

func values(m map[string]any) []any {
	var out []any
	for _, key := range sortedKeys(m) {
		out = append(out, m[key])
	}
	return out
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// lookups are the functions of one run.
type lookups struct {
	answer *Answer
	calls  Calls
}

func (l *lookups) functions() template.FuncMap {
	return template.FuncMap{"registrations": l.registrations, "services": l.services}
}

// registrations looks up; behind cluster, protocol, service and address can be preferred and
// optional.
func (l *lookups) registrations(args ...string) ([]Entry, error) {
	if len(args) < 4 {
		return nil, fmt.Errorf("it takes a cluster, a protocol, a service and an address, each of which can be \"*\"")
	}
	preferred, optional := false, false
	for _, option := range args[4:] {
		switch option {
		case "preferred":
			preferred = true
		case "optional":
			optional = true
		default:
			return nil, fmt.Errorf("behind the address come \"preferred\" or \"optional\", not %q", option)
		}
	}
	found, err := l.find(muster.RegistrationFilter{Cluster: args[0], Protocol: args[1], Service: args[2], Address: args[3]}, optional)
	if err != nil {
		return nil, err
	}
	if preferred {
		found = muster.PreferredEntries(found)
	}
	out := make([]Entry, len(found))
	for i, e := range found {
		out[i] = shown(e)
	}
	return out, nil
}

// services returns the names of the services of a cluster and a protocol.
func (l *lookups) services(args ...string) ([]string, error) {
	if len(args) != 2 {
		return nil, fmt.Errorf("it takes a cluster and a protocol, each of which can be \"*\"")
	}
	found, err := l.find(muster.RegistrationFilter{Cluster: args[0], Protocol: args[1]}, false)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{}
	for _, e := range found {
		names[e.Service] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}

func (l *lookups) find(f muster.RegistrationFilter, optional bool) ([]*muster.Entry, error) {
	found, err := l.answer.Select(f)
	if err != nil {
		return nil, err
	}
	if !optional {
		l.calls.Note(f, len(found))
	}
	return found, nil
}
