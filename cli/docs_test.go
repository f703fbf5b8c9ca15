package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are those that people read, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../docs/*.md")
	if err != nil || len(paths) < 8 {
		t.Fatalf("there are %d pages: %v", len(paths), err)
	}
	all := map[string]string{}
	for _, path := range append(paths, "../README.md", "../examples/README.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(text)
	}
	return all
}

var (
	codeBlock  = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```")
	inlineCode = regexp.MustCompile("`([^`\n]+)`")
	callsIt    = regexp.MustCompile(`^(?:\S+=\S* |sudo |\(umask \d+; |bin/|\./|source <\()*muster\s+(.*)$`)
	placed     = regexp.MustCompile(`\s(?:#|\||>|<|&|;|2>).*$|\)$`) // what a shell does with the rest
	stray      = regexp.MustCompile(`[|;()]`)
)

// commandLines are what a page tells people to type, without the program.
func commandLines(page string) (lines []string) {
	add := func(line string) {
		if m := callsIt.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			lines = append(lines, m[1])
		}
	}
	for _, block := range codeBlock.FindAllStringSubmatch(page, -1) {
		for line := range strings.Lines(strings.ReplaceAll(block[2], "\\\n", " ")) {
			typed := strings.TrimSpace(line)
			switch block[1] {
			case "sh":
				add(typed)
			case "console":
				if command, ok := strings.CutPrefix(typed, "$ "); ok {
					add(command)
				} else if command, ok := strings.CutPrefix(typed, "# "); ok {
					add(command)
				}
			}
		}
	}
	for _, code := range inlineCode.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		add(code[1])
	}
	return lines
}

// words splits a command line as a shell does, as far as the pages need it.
func words(line string) (out []string) {
	quote, word, open := rune(0), "", false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word += string(r)
		case r == '\'' || r == '"':
			quote, open = r, true
		case r == ' ':
			if word != "" || open {
				out = append(out, word)
			}
			word, open = "", false
		default:
			word += string(r)
		}
	}
	if word != "" || open {
		out = append(out, word)
	}
	return out
}

// Every command that a page tells people to type is one, with flags that it has.
func TestDocs_CommandsAreThere(t *testing.T) {
	count := 0
	for path, page := range pages(t) {
		for _, line := range commandLines(page) {
			args := words(placed.ReplaceAllString(line, ""))
			if at := slices.Index(args, "--"); at >= 0 { // what follows is another program's
				args = args[:at]
			}
			if len(args) == 0 || strings.ToUpper(args[0]) == args[0] || strings.Contains(args[0], "…") || stray.MatchString(args[0]) {
				continue // COMMAND stands for any
			}
			count++
			code, out, said := run(nil, append(args, "--help")...)
			usage := regexp.MustCompile(`(?m)^Usage:\n  (muster.*)$`).FindStringSubmatch(out)
			switch {
			case code != 0:
				t.Errorf("%s: muster %s: %s", path, line, said)
			case usage == nil:
				t.Errorf("%s: muster %s has no usage: %s", path, line, out)
			case strings.HasSuffix(usage[1], " COMMAND") && !strings.HasPrefix(args[0], "-") && len(args) > len(strings.Fields(usage[1]))-2:
				t.Errorf("%s: there is no muster %s", path, line)
			}
		}
	}
	if count < 100 {
		t.Errorf("only %d commands were found", count)
	}
}

// The settings of the README are there, with the defaults that it says.
func TestDocs_SettingsAreAsTheReadmeSays(t *testing.T) {
	table := regexp.MustCompile("(?m)^\\| setting of `muster ([a-z]+)` .*\n\\|[-|]+\\|\n((?:\\|.*\n)+)")
	row := regexp.MustCompile("^\\| (`--[^|]+) \\| ([^|]*) \\|")
	flag := regexp.MustCompile("`--([a-z-]+)`")
	count := 0
	for path, page := range pages(t) {
		for _, m := range table.FindAllStringSubmatch(page, -1) {
			_, help, _ := run(nil, m[1], "--help")
			for line := range strings.Lines(m[2]) {
				r := row.FindStringSubmatch(line)
				if r == nil {
					t.Errorf("%s: muster %s: no setting in %s", path, m[1], line)
					continue
				}
				names, defaults := flag.FindAllStringSubmatch(r[1], -1), strings.Split(strings.ReplaceAll(r[2], "`", ""), ", ")
				for k, name := range names {
					count++
					told := regexp.MustCompile(`(?m)^ +(?:-., )?--` + name[1] + `( .*)?\(default (.*)\) \[`).FindStringSubmatch(help)
					if told == nil {
						t.Errorf("%s: muster %s has no setting --%s", path, m[1], name[1])
					} else if plain := strings.ReplaceAll(defaults[min(k, len(defaults)-1)], ",", ""); told[2] != plain && !strings.Contains(r[2], " ") {
						t.Errorf("%s: the default of --%s is %s, not %s", path, name[1], told[2], plain)
					}
				}
			}
		}
	}
	if count < 20 {
		t.Errorf("only %d settings were found", count)
	}
}
