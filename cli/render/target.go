package render

import (
	"path/filepath"
	"time"

	"github.com/muster-cloud/muster"
)

// The defaults of a target.
const (
	DefaultMaxShrink      = 50 // percent
	DefaultCommandTimeout = 30 * time.Second
)

// Target is a file that is kept.
type Target struct {
	Output  string  // its path
	Content Content // of what it is made
	// Check has to succeed before a new text counts; run by /bin/sh. A {} is replaced by
	// the path of the new text, quoted; without one the new text is what the command finds
	// in the file's place. Default none.
	Check   string
	Reload  string        // runs once the new text is in place; default none
	Timeout time.Duration // of each command; default DefaultCommandTimeout

	MaxShrink       int  // by how many percent what a lookup finds may shrink; default DefaultMaxShrink, 100: by any
	AllowEmpty      bool // it may shrink to nothing; default no
	AllowIncomplete bool // render over a file that is there although the first answer is not complete; default no
}

func (t *Target) maxShrink() int {
	if t.MaxShrink == 0 {
		return DefaultMaxShrink
	}
	return t.MaxShrink
}

func (t *Target) timeout() time.Duration {
	if t.Timeout == 0 {
		return DefaultCommandTimeout
	}
	return t.Timeout
}

// Validate refuses settings that cannot be followed.
func (t *Target) Validate() error {
	switch {
	case t.Output == "":
		return muster.InvalidField("output", "it is missing: name the file to write")
	case t.Content == nil:
		return muster.InvalidField("template", "it is missing: name the template of %s", t.Output)
	case t.Timeout < 0:
		return muster.InvalidField("timeout", "%s is no time to wait for a command; give one such as 30s", t.Timeout)
	case t.MaxShrink < 0 || t.MaxShrink > 100:
		return muster.InvalidField("maxShrink", "%d is not between 1 and 100 percent", t.MaxShrink)
	}
	return nil
}

func validate(targets []Target) error {
	seen := map[string]bool{}
	for i := range targets {
		if err := targets[i].Validate(); err != nil {
			return err
		}
		path, err := filepath.Abs(targets[i].Output)
		if err != nil {
			return err
		}
		if seen[path] {
			return muster.InvalidField("output", "%s is written twice; leave one out", path)
		}
		seen[path] = true
	}
	if len(targets) == 0 {
		return muster.InvalidField("targets", "there is none: name at least one file to write")
	}
	return nil
}
