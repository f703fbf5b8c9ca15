package operations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
)

// spans are the fields that are a time.Duration in the vocabulary, and text such as
// "10s" on the wire.
var spans = map[string]bool{
	"interval": true, "timeout": true, "pause": true, "initialDelay": true,
	"backoff": true, "longest": true, "window": true, "stableFor": true, "ttl": true, "drainFor": true, "drain": true,
}

// free are the fields whose keys are anybody's.
var free = map[string]bool{"env": true, "labels": true, "nodeSelector": true, "annotations": true}

// convert applies f to every span in a JSON document.
func convert(b []byte, f func(any) (any, error)) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	if err := walk(tree, f); err != nil {
		return nil, err
	}
	return json.Marshal(tree)
}

func walk(tree any, f func(any) (any, error)) error {
	switch node := tree.(type) {
	case []any:
		for _, element := range node {
			if err := walk(element, f); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, value := range node {
			switch {
			case free[name] || value == nil:
			case spans[name]:
				converted, err := f(value)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				node[name] = converted
			default:
				if err := walk(value, f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// toText writes a span of nanoseconds as text.
func toText(value any) (any, error) {
	n, ok := value.(json.Number)
	if !ok {
		return value, nil
	}
	nanoseconds, err := n.Int64()
	return time.Duration(nanoseconds).String(), err
}

// toNanoseconds reads a span from text.
func toNanoseconds(value any) (any, error) {
	text, ok := value.(string)
	if !ok {
		return value, nil
	}
	d, err := time.ParseDuration(text)
	return int64(d), err
}

// marshal writes what has spans.
func marshal(in any) ([]byte, error) {
	b, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	return convert(b, toText)
}

// unmarshal reads what has spans.
func unmarshal(b []byte, out any) error {
	converted, err := convert(b, toNanoseconds)
	if err != nil {
		return fmt.Errorf("read an answer: %w", err)
	}
	return json.Unmarshal(converted, out)
}

// UnmarshalAssignments reads what the registry wants of a node.
func UnmarshalAssignments(b []byte, a *muster.Assignments) error { return unmarshal(b, a) }

// MarshalCheck writes a health check as it came.
func MarshalCheck(c *muster.Check) ([]byte, error) { return marshal(c) }

// UnmarshalCheck reads a health check.
func UnmarshalCheck(b []byte, c *muster.Check) error { return unmarshal(b, c) }

// MarshalRestartPolicy writes a restart policy as it came.
func MarshalRestartPolicy(p *muster.RestartPolicy) ([]byte, error) { return marshal(p) }

// UnmarshalRestartPolicy reads a restart policy.
func UnmarshalRestartPolicy(b []byte, p *muster.RestartPolicy) error { return unmarshal(b, p) }

// MarshalRegistrationSpec writes an entry of the discovery feed as it came.
func MarshalRegistrationSpec(r *muster.RegistrationSpec) ([]byte, error) { return marshal(r) }

// UnmarshalRegistrationSpec reads an entry of the discovery feed.
func UnmarshalRegistrationSpec(b []byte, r *muster.RegistrationSpec) error { return unmarshal(b, r) }

// MarshalDeployServiceInput writes what to deploy.
func MarshalDeployServiceInput(in *muster.DeployServiceInput) ([]byte, error) { return marshal(in) }

// MarshalRegisterServiceInput writes what to announce.
func MarshalRegisterServiceInput(in *muster.RegisterServiceInput) ([]byte, error) {
	return marshal(in)
}

// MarshalRegisterInput writes an entry to register.
func MarshalRegisterInput(in *muster.RegisterInput) ([]byte, error) { return marshal(in) }
