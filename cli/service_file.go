package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/muster-cloud/muster"
)

const (
	maxServiceFile = 1 << 20 // bytes of a file of --file
	maxComplaint   = 200     // characters of what is wrong with one
)

// readServiceFile reads an input from one YAML document, with the names of the schema. What
// is not in the input is refused, and so is a key that is there twice. Words of
// enumerations can be written in any case.
func readServiceFile[T muster.DeployServiceInput | muster.RegisterServiceInput](stdin io.Reader, name string) (in T, err error) {
	text, err := readFileOf(stdin, name)
	if err != nil {
		return in, err
	}
	err = refuseAliases(text)
	if err == nil { // else they would be followed
		err = refuseZeroIntervals(text)
	}
	if err != nil {
		return in, usageError("--file %s: %w", name, err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict(), yaml.CustomUnmarshaler(mapAsWritten), yaml.CustomUnmarshaler(textAsWritten))
	switch err := decoder.Decode(&in); {
	case errors.Is(err, io.EOF):
		return in, usageError("--file %s is empty; write such as name: web", name)
	case err != nil:
		return in, usageError("--file %s: %s; the names are those of %s in the schema", name, cut(yamlComplaint(err), maxComplaint), strings.TrimPrefix(fmt.Sprintf("%T", in), "muster."))
	}
	var more any
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return in, usageError("--file %s has more than one document; give one service a file", name)
	}
	switch in := any(&in).(type) {
	case *muster.DeployServiceInput:
		if in.Type != nil {
			*in.Type = muster.InstanceType(strings.ToUpper(string(*in.Type)))
		}
		if in.Restart != nil {
			in.Restart.When = muster.RestartWhen(enumWord(string(in.Restart.When)))
		}
		unify(in.Publish, in.Checks)
	case *muster.RegisterServiceInput:
		unify(in.Publish, in.Checks)
	}
	return in, nil
}

// unify fills in the schema's default of what is published, and writes words as the schema does.
func unify(publish *muster.Published, checks []muster.Check) {
	if publish != nil {
		if publish.Protocol = muster.PortProtocol(enumWord(string(publish.Protocol))); publish.Protocol == "" {
			publish.Protocol = muster.TCP
		}
	}
	for i := range checks {
		checks[i].Kind = muster.CheckKind(enumWord(string(checks[i].Kind)))
	}
}

func enumWord(word string) string { return strings.ToUpper(strings.ReplaceAll(word, "-", "_")) }

// refuseAliases refuses what stands for another part of the file: a small text could be
// endless by them.
func refuseAliases(text []byte) error {
	for _, t := range lexer.Tokenize(string(text)) {
		if t.Type == token.AliasType || t.Type == token.AnchorType {
			return usageError("line %d: anchors and aliases are not read here; write it out", t.Position.Line)
		}
	}
	return nil
}

// refuseZeroIntervals refuses an interval of nothing, which the input could not tell from
// one that was left out.
func refuseZeroIntervals(text []byte) error {
	var spans struct {
		Checks []struct {
			Interval, Timeout *string
		} `yaml:"checks"`
	}
	if yaml.Unmarshal(text, &spans) != nil {
		return nil // said better by the whole
	}
	for _, c := range spans.Checks {
		for key, value := range map[string]*string{"interval": c.Interval, "timeout": c.Timeout} {
			if value != nil && strings.Trim(*value, "0hmnsu.") == "" {
				return usageError("checks.%s: %s is no time above 0s; leave it out for the default", key, quote(*value))
			}
		}
	}
	return nil
}

// textAsWritten reads a text where what looks like a number is what was written: 1.50 and 007 are
// not 1.5 and 7.
func textAsWritten(to *string, text []byte) error {
	body, err := bodyOf(text)
	if err != nil {
		return err
	}
	if *to, err = scalarText(body); err != nil {
		return usageError("a value %w", err)
	}
	return nil
}

// mapAsWritten is textAsWritten for a map of texts.
func mapAsWritten(to *muster.Map, text []byte) error {
	body, err := bodyOf(text)
	if err != nil {
		return err
	}
	var entries []*ast.MappingValueNode
	switch body := body.(type) {
	case *ast.MappingNode:
		entries = body.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{body}
	default:
		return usageError("it has to be KEY: VALUE, a line each")
	}
	*to = muster.Map{}
	for _, entry := range entries {
		key := entry.Key.GetToken().Value
		if (*to)[key], err = scalarText(entry.Value); err != nil {
			return usageError("the value of %s %w", quote(key), err)
		}
	}
	return nil
}

func bodyOf(text []byte) (ast.Node, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	if len(file.Docs) != 1 {
		return nil, usageError("it has to be one value")
	}
	return file.Docs[0].Body, nil
}

func scalarText(node ast.Node) (string, error) {
	switch n := node.(type) {
	case *ast.LiteralNode:
		return n.Value.Value, nil
	case *ast.StringNode:
		return n.Value, nil
	case *ast.NullNode:
		return "", usageError(`is missing; write "" for an empty one`)
	case ast.ScalarNode:
		return n.GetToken().Value, nil
	}
	return "", usageError("is no text; quote it")
}

// mistyped is what the decoder says of a value of another type.
var mistyped = regexp.MustCompile(`^cannot unmarshal (\w+) into Go (?:struct field \w+\.(\w+)|value) of type (.*)$`)

// yamlComplaint is a decoder's error on one line, without the lines of the file that it shows: they may
// have secrets.
func yamlComplaint(err error) string {
	plain, ok := errors.AsType[yaml.Error](err)
	if !ok {
		line, _, _ := strings.Cut(err.Error(), "\n")
		return strings.TrimPrefix(line, "time: ")
	}
	message := plain.GetMessage()
	if m := mistyped.FindStringSubmatch(message); m != nil {
		wanted := "of another type"
		switch m[3] {
		case "time.Duration":
			wanted = "a time such as 30s"
		case "int":
			wanted = "a whole number"
		case "bool":
			wanted = "true or false"
		}
		message = strings.TrimSpace(fmt.Sprintf("%s has to be %s", strings.ToLower(m[2][:min(1, len(m[2]))])+m[2][min(1, len(m[2])):], wanted))
	}
	if at := plain.GetToken(); at != nil {
		return fmt.Sprintf("line %d: %s", at.Position.Line, message)
	}
	return message
}

// readFileOf reads a file of bounded size; - is standard input.
func readFileOf(stdin io.Reader, name string) ([]byte, error) {
	source := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, usageError("--file: %w", err)
		}
		defer file.Close()
		source = file
	}
	text, err := io.ReadAll(io.LimitReader(source, maxServiceFile+1))
	if err != nil {
		return nil, fmt.Errorf("--file %s: %w", name, err)
	}
	if len(text) > maxServiceFile {
		return nil, usageError("--file %s has more than %d bytes; that is no service", name, maxServiceFile)
	}
	return text, nil
}
