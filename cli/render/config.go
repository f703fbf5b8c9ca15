package render

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/muster-cloud/muster"
)

// maxConfig bounds a configuration, in bytes.
const maxConfig = 1 << 20

// config is a file with several targets.
type config struct {
	Quiet       span           `yaml:"quiet"`
	Longest     span           `yaml:"longest"`
	MetricsFile string         `yaml:"metricsFile"`
	Targets     []configTarget `yaml:"targets"`
}

type configTarget struct {
	Template        string `yaml:"template"`
	Output          string `yaml:"output"`
	Check           string `yaml:"check"`
	Reload          string `yaml:"reload"`
	Timeout         span   `yaml:"timeout"`
	MaxShrink       int    `yaml:"maxShrink"`
	AllowEmpty      bool   `yaml:"allowEmpty"`
	AllowIncomplete bool   `yaml:"allowIncomplete"`
}

// span is a time such as 500ms.
type span time.Duration

func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no time; write one such as 500ms or 30s", text)
	}
	*s = span(d)
	return nil
}

// ReadConfig reads a YAML file with several targets, and their templates. Paths in it are
// from where it is. Its errors are INVALID, or of the kind BadTemplate.
func ReadConfig(path string) ([]Target, Options, error) {
	c, err := decodeConfig(path)
	if err != nil {
		return nil, Options{}, muster.Errorf(muster.Invalid, "--config %s: %s", path, err)
	}
	from := func(name string) string {
		if name == "" || filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(filepath.Dir(path), name)
	}
	var targets []Target
	for _, t := range c.Targets {
		if t.Template == "" || t.Output == "" {
			return nil, Options{}, muster.Errorf(muster.Invalid, "--config %s: each target has a template and an output", path)
		}
		content, err := ReadTemplate(from(t.Template))
		if err != nil {
			return nil, Options{}, err
		}
		targets = append(targets, Target{
			Output: from(t.Output), Content: content, Check: t.Check, Reload: t.Reload, Timeout: time.Duration(t.Timeout),
			MaxShrink: t.MaxShrink, AllowEmpty: t.AllowEmpty, AllowIncomplete: t.AllowIncomplete,
		})
	}
	return targets, Options{Quiet: time.Duration(c.Quiet), Longest: time.Duration(c.Longest), MetricsFile: from(c.MetricsFile)}, validate(targets)
}

func decodeConfig(path string) (c config, err error) {
	file, err := os.Open(path)
	if err != nil {
		return c, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxConfig))
	if err != nil {
		return c, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	if err := decoder.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		if complaint, ok := errors.AsType[yaml.Error](err); ok {
			return c, errors.New(complaint.GetMessage())
		}
		return c, err
	}
	return c, nil
}
