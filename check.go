package muster

import (
	"strings"
	"time"
	"unicode/utf8"
)

// CheckKind is how a health check looks.
type CheckKind string

// The kinds of checks.
const (
	ExecCheck CheckKind = "EXEC" // a command in the instance; its exit status says it, as Nagios plugins have it
	HTTPCheck CheckKind = "HTTP"
	TCPCheck  CheckKind = "TCP"
	TTLCheck  CheckKind = "TTL" // the service itself says it, by reportCheck, before its interval has passed
)

// CheckStatus is what a check found.
type CheckStatus string

// The statuses of a check, as Nagios has them.
const (
	CheckOK       CheckStatus = "OK"
	CheckWarning  CheckStatus = "WARNING"
	CheckCritical CheckStatus = "CRITICAL"
	CheckUnknown  CheckStatus = "UNKNOWN" // it has not run, or could not
)

// Valid reports whether it is a status of a check.
func (s CheckStatus) Valid() bool {
	switch s {
	case CheckOK, CheckWarning, CheckCritical, CheckUnknown:
		return true
	}
	return false
}

// The limits and defaults of checks.
const (
	MaxChecks            = 16
	MinCheckInterval     = time.Second
	MaxCheckInterval     = 24 * time.Hour
	DefaultCheckInterval = 10 * time.Second
	DefaultCheckTimeout  = 5 * time.Second
	MaxCheckTries        = 10
	MaxCheckThreshold    = 100
	MaxCheckPath         = 2048
)

// Check is a health check of a service. It runs where the service's address lives.
type Check struct {
	Name string    `json:"name"`
	Kind CheckKind `json:"kind"`

	Command []string `json:"command,omitempty"` // EXEC

	Port       int    `json:"port,omitempty"`       // HTTP, TCP; 0: the service's
	Path       string `json:"path,omitempty"`       // HTTP; empty: /
	TLS        bool   `json:"tls,omitempty"`        // HTTP: by https
	SkipVerify bool   `json:"skipVerify,omitempty"` // HTTP: whoever signed the certificate
	Status     int    `json:"status,omitempty"`     // HTTP: that is expected; 0: 200 to 399
	Body       string `json:"body,omitempty"`       // HTTP: text that the answer has to have in its first 64 KiB

	Interval     time.Duration `json:"interval,omitempty"`     // from one run to the next; 0: DefaultCheckInterval
	Timeout      time.Duration `json:"timeout,omitempty"`      // of one try; 0: DefaultCheckTimeout, at most the interval
	Tries        int           `json:"tries,omitempty"`        // of one run, before it counts as failed; 0: 1
	Pause        time.Duration `json:"pause,omitempty"`        // between two tries
	InitialDelay time.Duration `json:"initialDelay,omitempty"` // from the service's start to the first run

	// FailAfter and PassAfter are how many runs in a row turn it away from OK, and back; 0: 1.
	FailAfter int `json:"failAfter,omitempty"`
	PassAfter int `json:"passAfter,omitempty"`
}

// WithDefaults returns the check with every default filled in.
func (c Check) WithDefaults() Check {
	if c.Interval == 0 {
		c.Interval = DefaultCheckInterval
	}
	if c.Timeout == 0 {
		c.Timeout = min(DefaultCheckTimeout, c.Interval)
	}
	c.Tries, c.FailAfter, c.PassAfter = max(c.Tries, 1), max(c.FailAfter, 1), max(c.PassAfter, 1)
	if c.Kind == HTTPCheck && c.Path == "" {
		c.Path = "/"
	}
	return c
}

// Validate refuses a check that cannot be run, and names its field below prefix.
func (c *Check) Validate(prefix string, servicePort int) error {
	if err := CheckName(prefix+".name", c.Name); err != nil {
		return err
	}
	if err := c.validateKind(prefix, servicePort); err != nil {
		return err
	}
	return c.validateTimes(prefix)
}

func (c *Check) validateKind(prefix string, servicePort int) error {
	switch c.Kind {
	case ExecCheck:
		if len(c.Command) == 0 {
			return InvalidField(prefix+".command", "it is empty; give the command of the check %s", c.Name)
		}
		return checkWords(prefix+".command", c.Command)
	case HTTPCheck, TCPCheck:
		switch {
		case c.Port < 0 || c.Port > 65535:
			return InvalidField(prefix+".port", "%d is not between 1 and 65535", c.Port)
		case c.Port == 0 && servicePort == 0:
			return InvalidField(prefix+".port", "neither the check %s nor its service has a port; give one of them one", c.Name)
		case c.Path != "" && (!strings.HasPrefix(c.Path, "/") || len(c.Path) > MaxCheckPath || strings.ContainsAny(c.Path, " \r\n\x00") || !utf8.ValidString(c.Path)):
			return InvalidField(prefix+".path", "%.80q is no path; give one that begins with /, such as /healthz", c.Path)
		case c.Status != 0 && (c.Status < 100 || c.Status > 599):
			return InvalidField(prefix+".status", "%d is no status of HTTP", c.Status)
		}
		return CheckText(prefix+".body", c.Body, MaxReasonBytes)
	case TTLCheck:
		return nil
	}
	return InvalidField(prefix+".kind", "%q is no kind of check; use EXEC, HTTP, TCP or TTL", c.Kind)
}

func (c *Check) validateTimes(prefix string) error {
	d := c.WithDefaults()
	switch {
	case d.Interval < MinCheckInterval || d.Interval > MaxCheckInterval:
		return InvalidField(prefix+".interval", "%s is not between %s and %s", d.Interval, MinCheckInterval, MaxCheckInterval)
	case d.Timeout <= 0 || d.Timeout > d.Interval:
		return InvalidField(prefix+".timeout", "%s is not above 0s and at most the interval, %s", d.Timeout, d.Interval)
	case d.Tries > MaxCheckTries || c.Tries < 0:
		return InvalidField(prefix+".tries", "%d is not between 1 and %d", c.Tries, MaxCheckTries)
	case d.Pause < 0 || d.Pause > d.Interval:
		return InvalidField(prefix+".pause", "%s is not between 0s and the interval, %s", d.Pause, d.Interval)
	case d.InitialDelay < 0 || d.InitialDelay > MaxCheckInterval:
		return InvalidField(prefix+".initialDelay", "%s is not between 0s and %s", d.InitialDelay, MaxCheckInterval)
	case c.FailAfter < 0 || d.FailAfter > MaxCheckThreshold:
		return InvalidField(prefix+".failAfter", "%d is not between 1 and %d", c.FailAfter, MaxCheckThreshold)
	case c.PassAfter < 0 || d.PassAfter > MaxCheckThreshold:
		return InvalidField(prefix+".passAfter", "%d is not between 1 and %d", c.PassAfter, MaxCheckThreshold)
	}
	return nil
}

// CheckResult is what a check found last.
type CheckResult struct {
	Name   string      `json:"name"`
	Status CheckStatus `json:"status"`
	// Since is when the status last turned.
	Since *time.Time `json:"since,omitempty"`
	// Output is what the last run said, at most MaxOutputBytes; volatile.
	Output string `json:"output,omitempty"`
	// At is when it last ran; volatile.
	At *time.Time `json:"at,omitempty"`
}
