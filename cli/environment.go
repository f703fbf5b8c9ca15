package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/muster-cloud/muster"
)

// maxEnvFile bounds a file of variables, in bytes.
const maxEnvFile = 1 << 20

// environment is what a program is to have in its environment. A secret need not be in a
// command line, where everybody on the machine could read it.
type environment struct {
	given, files []string
}

func (e *environment) declare(f *pflag.FlagSet, short string) {
	f.StringArrayVarP(&e.given, "env", short, nil, "a variable `KEY=VALUE` of its environment; KEY alone takes the value from mine; may be repeated")
	f.StringArrayVar(&e.files, "env-file", nil, "`FILE` of such variables, a line each; may be repeated")
}

// read returns the variables; --env counts more than a file, and a later file more than an
// earlier one.
func (e *environment) read(lookup func(string) (string, bool)) (muster.Map, error) {
	env := muster.Map{}
	for _, name := range e.files {
		lines, err := readEnvFile(name)
		if err != nil {
			return nil, err
		}
		for n, line := range lines {
			line = strings.TrimSuffix(line, "\r")
			if trimmed := strings.TrimSpace(line); trimmed == "" || trimmed[0] == '#' {
				continue
			}
			if err := addVariable(env, line, lookup); err != nil {
				return nil, usageError("--env-file %s: line %d: %w", name, n+1, err) // without the line: it may be a secret
			}
		}
	}
	for _, entry := range e.given {
		if err := addVariable(env, entry, lookup); err != nil {
			key, _, _ := strings.Cut(entry, "=")
			return nil, usageError("--env %s: %w", quote(key), err)
		}
	}
	return env, nil
}

// addVariable reads KEY=VALUE, where the value may hold anything, or KEY.
func addVariable(env muster.Map, entry string, lookup func(string) (string, bool)) error {
	key, value, given := strings.Cut(entry, "=")
	if key == "" || strings.ContainsAny(key, " \t\"'") {
		return usageError("it is not KEY=VALUE; write such as MODE=test, without blanks before the =")
	}
	if !given {
		mine, ok := lookup(key)
		if !ok {
			return usageError("there is no variable %s in my environment to take the value from; set it, or give KEY=VALUE", key)
		}
		value = mine
	}
	env[key] = value
	return nil
}

func readEnvFile(name string) ([]string, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, usageError("--env-file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxEnvFile+1))
	if err != nil {
		return nil, fmt.Errorf("--env-file %s: %w", name, err)
	}
	if len(text) > maxEnvFile {
		return nil, usageError("--env-file %s has more than %d bytes; give a file of KEY=VALUE, a line each", name, maxEnvFile)
	}
	return strings.Split(string(text), "\n"), nil
}
