package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// Every flag that was declared with settings is a setting: it can be given as a
// MUSTER_ variable too, and its help names the variable and the default. A flag
// of one call, such as `instance launch --name`, is not: a variable left in the
// environment must not change what a command does to the cluster.

// variableKey is the annotation that makes a flag a setting; its values are the
// names of its variables, the first one that is set counts.
const variableKey = "muster_variables"

// settings makes every flag declared in declare a setting.
func settings(flags *pflag.FlagSet, declare func(*pflag.FlagSet)) {
	declared := pflag.NewFlagSet("", pflag.ContinueOnError)
	declare(declared)
	declared.VisitAll(func(f *pflag.Flag) {
		alias(f, variableOf(f.Name))
		flags.AddFlag(f)
	})
}

// alias adds a variable that the setting is read from.
func alias(f *pflag.Flag, variable string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[variableKey] = append(f.Annotations[variableKey], variable)
}

// variableOf returns the variable of a flag: data-dir is MUSTER_DATA_DIR.
func variableOf(flag string) string {
	return "MUSTER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// readEnvironment gives each setting that was not given as a flag the value of
// its variable. An empty variable counts as not set.
func readEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var bad error
	flags.VisitAll(func(f *pflag.Flag) {
		if bad != nil || f.Changed {
			return
		}
		for _, variable := range f.Annotations[variableKey] {
			value, _ := lookup(variable)
			if value == "" {
				continue
			}
			if err := flags.Set(f.Name, value); err != nil {
				bad = badValue(variable, f, value, err)
			}
			return
		}
	})
	return bad
}

// badValue is a value that a flag, or the variable of a setting, cannot have.
func badValue(name string, f *pflag.Flag, value string, err error) error {
	reason := err.Error()
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok && invalid.Unwrap() != nil {
		reason = invalid.Unwrap().Error()
	}
	switch f.Value.Type() {
	case "duration":
		reason = "write a time such as 10s or 1h30m"
	case "int", "int64", "float64":
		reason = "write a number"
	case "bool":
		reason = "write true or false"
	case "stringToString":
		reason = "write KEY=VALUE"
	}
	return usageError("%s: %s is not valid for it: %s", name, quote(value), reason)
}

// quote shows a value that somebody typed, at most so much of it.
func quote(value string) string {
	const most = 60
	if runes := []rune(value); len(runes) > most {
		value = string(runes[:most]) + "…"
	}
	return fmt.Sprintf("%q", value)
}

// describeFlags returns the help of flags: name and type, then what it is, its
// default and its variables, in lines of at most so many characters; 0: of any length.
func describeFlags(flags *pflag.FlagSet, most int) string {
	var names, texts []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		names = append(names, flagName(f))
		texts = append(texts, flagText(f))
	})
	return columns(names, texts, most)
}

// columns puts each text beside its name, indented and aligned. Where the lines
// would be longer than most, and that leaves room for words, they are wrapped.
func columns(names, texts []string, most int) string {
	width := 0
	for _, name := range names {
		width = max(width, len(name))
	}
	var b strings.Builder
	for i := range names {
		for n, line := range wrap(texts[i], most-width-4) {
			name := ""
			if n == 0 {
				name = names[i]
			}
			fmt.Fprintf(&b, "  %-*s  %s\n", width, name, line)
		}
	}
	return strings.TrimRight(b.String(), "\n")
}

// wrap breaks text between words; where there is no room to, it stays one line.
func wrap(text string, most int) []string {
	const least = 24
	if most < least {
		return []string{text}
	}
	var lines []string
	for utf8.RuneCountInString(text) > most {
		at := strings.LastIndexByte(cut(text, most+1), ' ')
		if at <= 0 {
			break
		}
		lines, text = append(lines, text[:at]), text[at+1:]
	}
	return append(lines, text)
}

func flagName(f *pflag.Flag) string {
	name := "    --" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", --" + f.Name
	}
	kind, _ := pflag.UnquoteUsage(f)
	if kind != "" {
		name += " " + kind
	}
	return name
}

func flagText(f *pflag.Flag) string {
	_, text := pflag.UnquoteUsage(f)
	variables := f.Annotations[variableKey]
	if len(variables) == 0 {
		if slices.Contains([]string{"", "[]", "false", "0", "0s"}, f.DefValue) {
			return text
		}
		return fmt.Sprintf("%s (default %s)", text, shortDuration(f.DefValue))
	}
	standard := shortDuration(strings.Trim(f.DefValue, "[]"))
	if standard == "" {
		standard = "none"
	}
	return fmt.Sprintf("%s (default %s) [%s]", text, standard, strings.Join(variables, ", "))
}

// span is a duration for people.
func span(d time.Duration) string { return shortDuration(d.String()) }

// shortDuration leaves the zeros of a duration out: 72h0m0s is 72h. Other text
// comes back as it is.
func shortDuration(text string) string {
	if _, err := time.ParseDuration(text); err != nil {
		return text
	}
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}
