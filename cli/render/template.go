package render

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"text/template"
)

// maxText bounds what a template makes, in bytes.
const maxText = 64 << 20

// Content makes the text of a file, and says what it is from.
type Content func(a *Answer) (text []byte, calls Calls, err error)

// ReadTemplate reads a template; what it makes is the content of a file. Its error is an
// *Error of the kind BadTemplate.
func ReadTemplate(path string) (Content, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, failure(BadTemplate, path, err, "the template cannot be read: %s", err)
	}
	parsed, err := template.New(filepath.Base(path)).Option("missingkey=zero").Funcs(functions()).Parse(string(text))
	if err != nil {
		return nil, failure(BadTemplate, path, err, "the template cannot be parsed: %s", err)
	}
	return func(a *Answer) ([]byte, Calls, error) {
		l := &lookups{answer: a, calls: Calls{}}
		run, err := parsed.Clone() // two files may be of one template
		if err != nil {
			return nil, nil, err
		}
		out := &bounded{}
		if err := run.Funcs(l.functions()).Execute(out, nil); err != nil {
			return nil, nil, failure(BadTemplate, path, err, "the template failed: %s", err)
		}
		return out.Bytes(), l.calls, nil
	}, nil
}

// bounded takes no more than maxText.
type bounded struct{ bytes.Buffer }

var errTooLong = errors.New("it makes more than 64 MiB")

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxText {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}
