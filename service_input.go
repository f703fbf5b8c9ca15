package muster

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
)

// The limits of services.
const (
	MaxServices     = 64 // of an instance
	MaxStableFor    = 24 * time.Hour
	DefaultDrainFor = 5 * time.Second
	MaxDrainFor     = 10 * time.Minute
	MaxURLBytes     = 2048
	DefaultPortFrom = 30000
	DefaultPortTo   = 32767
)

// DeployServiceInput says what to deploy, and where: into an instance that there is,
// or into one that is launched for it.
type DeployServiceInput struct {
	InstanceID *InstanceID `json:"instanceId,omitempty"`

	// These launch an instance.
	Type         *InstanceType `json:"type,omitempty"`
	Image        string        `json:"image,omitempty"`
	NodeID       *string       `json:"nodeId,omitempty"`
	NodeSelector Map           `json:"nodeSelector,omitempty"`
	Queue        bool          `json:"queue,omitempty"`

	Name               string             `json:"name"`
	DeployURL          string             `json:"deployUrl,omitempty"`
	SHA256             string             `json:"sha256,omitempty"`
	Command            []string           `json:"command,omitempty"`
	Env                Map                `json:"env,omitempty"`
	User               string             `json:"user,omitempty"`
	Dir                string             `json:"dir,omitempty"`
	Port               int                `json:"port,omitempty"`
	Publish            *Published         `json:"publish,omitempty"`
	Checks             []Check            `json:"checks,omitempty"`
	Restart            *RestartPolicy     `json:"restart,omitempty"`
	RegisterWhenStable []RegistrationSpec `json:"registerWhenStable,omitempty"`
	StableFor          time.Duration      `json:"stableFor,omitempty"`
	DrainFor           *time.Duration     `json:"drainFor,omitempty"` // nil: DefaultDrainFor
	RequestID          string             `json:"requestId,omitempty"`
}

// Validate refuses an input that cannot be deployed anywhere.
func (in *DeployServiceInput) Validate() error {
	if err := in.validatePlace(); err != nil {
		return err
	}
	if len(in.Command) == 0 && in.DeployURL == "" {
		return InvalidField("command", "there is neither a command nor a deployUrl; say what to run")
	}
	if err := in.validateArtifact(); err != nil {
		return err
	}
	if len(in.Command) > 0 && in.Command[0] == "" {
		return InvalidField("command", "its first word is empty; give the program to run")
	}
	if strings.ContainsAny(in.User, "\x00\n/ ") || len(in.User) > MaxNameBytes {
		return InvalidField("user", "%.80q is no user; give a name or a number, with :GROUP if need be, or leave it out for one without rights", in.User)
	}
	if in.Dir != "" && (!path.IsAbs(in.Dir) || strings.ContainsRune(in.Dir, 0) || len(in.Dir) > MaxURLBytes) {
		return InvalidField("dir", "%.80q is no absolute path in the instance", in.Dir)
	}
	if in.DrainFor != nil && (*in.DrainFor < 0 || *in.DrainFor > MaxDrainFor) {
		return InvalidField("drainFor", "%s is not between 0s and %s", *in.DrainFor, MaxDrainFor)
	}
	if in.Restart != nil {
		if err := in.Restart.validate(); err != nil {
			return err
		}
	}
	return first(
		checkWords("command", in.Command),
		checkEnv(in.Env),
		exposure{in.Name, in.Port, in.Publish, in.Checks, in.RegisterWhenStable, in.StableFor}.validate(),
		CheckText("requestId", in.RequestID, MaxRequestIDBytes),
	)
}

func (in *DeployServiceInput) validatePlace() error {
	launches := in.Type != nil || in.Image != "" || in.NodeID != nil || len(in.NodeSelector) > 0 || in.Queue
	switch {
	case in.InstanceID == nil && in.Type == nil:
		return InvalidField("instanceId", "neither an instance nor a type is given; name the instance, or give the type of one to launch")
	case in.InstanceID != nil && launches:
		return InvalidField("instanceId", "type, image, nodeId, nodeSelector and queue launch an instance; leave them out to deploy into %s", *in.InstanceID)
	case in.InstanceID != nil:
		return CheckID("instanceId", string(*in.InstanceID))
	}
	if _, ok := in.Type.Info(); !ok {
		return InvalidField("type", "%q is no instance type; use NANO, MICRO, SMALL, MEDIUM or LARGE", *in.Type)
	}
	return CheckMap("nodeSelector", in.NodeSelector)
}

// Launch is the instance that is launched for the service.
func (in *DeployServiceInput) Launch() LaunchInstanceInput {
	image := in.Image
	if image == "" {
		image = DefaultImage
	}
	return LaunchInstanceInput{
		Type: *in.Type, Name: in.Name, Image: image, NodeID: in.NodeID, NodeSelector: in.NodeSelector, Queue: in.Queue,
	}
}

func (in *DeployServiceInput) validateArtifact() error {
	if in.DeployURL == "" {
		if in.SHA256 != "" {
			return InvalidField("sha256", "it is the checksum of what deployUrl names; give that too")
		}
		return nil
	}
	u, err := url.Parse(in.DeployURL)
	switch {
	case err != nil, len(in.DeployURL) > MaxURLBytes, CheckText("deployUrl", in.DeployURL, MaxURLBytes) != nil:
		return InvalidField("deployUrl", "%.80q is no URL; give one such as https://example.org/app.tar.gz", in.DeployURL)
	case u.User != nil:
		return InvalidField("deployUrl", "it has a password in it, which everybody who may read services would see; give a URL without")
	case u.Scheme == "file" && u.Host == "" && path.IsAbs(u.Path):
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
	default:
		return InvalidField("deployUrl", "%.80q is neither http, https nor file; give a URL such as https://example.org/app.tar.gz or file:///srv/app.tar", in.DeployURL)
	}
	return checkSHA256("sha256", in.SHA256)
}

// checkSHA256 takes a checksum, or none.
func checkSHA256(field, text string) error {
	if text != "" && (len(text) != 64 || strings.Trim(strings.ToLower(text), "0123456789abcdef") != "") {
		return InvalidField(field, "%.80q is no SHA-256 checksum; give 64 hex digits, as sha256sum prints them", text)
	}
	return nil
}

// exposure is how others come to a service, and learn how it is.
type exposure struct {
	name      string
	port      int
	publish   *Published
	checks    []Check
	entries   []RegistrationSpec
	stableFor time.Duration
}

func (x exposure) validate() error {
	p := x.publish
	switch {
	case x.port < 0 || x.port > 65535:
		return InvalidField("port", "%d is not between 1 and 65535", x.port)
	case p != nil && x.port == 0:
		return InvalidField("publish", "there is no port to lead to; give the service's own as port")
	case p != nil && p.Protocol != TCP && p.Protocol != UDP:
		return InvalidField("publish.protocol", "%q is none; use TCP or UDP", p.Protocol)
	case p != nil && (p.Port < 0 || p.Port > 65535):
		return InvalidField("publish.port", "%d is not between 1 and 65535; leave it out for any that is free", p.Port)
	case x.stableFor < 0 || x.stableFor > MaxStableFor:
		return InvalidField("stableFor", "%s is not between 0s and %s", x.stableFor, MaxStableFor)
	}
	return first(CheckName("name", x.name), x.validateChecks(), x.validateEntries())
}

func (x exposure) validateChecks() error {
	if len(x.checks) > MaxChecks {
		return InvalidField("checks", "there are %d, at most %d are allowed", len(x.checks), MaxChecks)
	}
	names := map[string]bool{}
	for i := range x.checks {
		if err := x.checks[i].Validate("checks", x.port); err != nil {
			return err
		}
		if names[x.checks[i].Name] {
			return InvalidField("checks.name", "two checks are called %s; give each its own name", x.checks[i].Name)
		}
		names[x.checks[i].Name] = true
	}
	return nil
}

func (x exposure) validateEntries() error {
	for i := range x.entries {
		if x.entries[i].Service != "" {
			continue
		}
		if err := CheckRegistrationName("registerWhenStable.service", x.name); err != nil {
			return err
		}
	}
	return checkRegistrations(x.entries)
}

// RegisterServiceInput announces a process that runs already.
type RegisterServiceInput struct {
	InstanceID         InstanceID         `json:"instanceId"`
	Name               string             `json:"name"`
	Port               int                `json:"port,omitempty"`
	Publish            *Published         `json:"publish,omitempty"`
	Checks             []Check            `json:"checks,omitempty"`
	RegisterWhenStable []RegistrationSpec `json:"registerWhenStable,omitempty"`
	StableFor          time.Duration      `json:"stableFor,omitempty"`
	RequestID          string             `json:"requestId,omitempty"`
}

// Validate refuses an input that is no service.
func (in *RegisterServiceInput) Validate() error {
	return first(
		CheckID("instanceId", string(in.InstanceID)),
		exposure{in.Name, in.Port, in.Publish, in.Checks, in.RegisterWhenStable, in.StableFor}.validate(),
		CheckText("requestId", in.RequestID, MaxRequestIDBytes),
	)
}

// ReportCheckInput is what a service says of its own TTL check.
type ReportCheckInput struct {
	ServiceID ServiceID   `json:"serviceId"`
	Check     string      `json:"check"`
	Status    CheckStatus `json:"status"`
	Output    string      `json:"output,omitempty"`
}

// Validate refuses an input that is no result.
func (in *ReportCheckInput) Validate() error {
	if !in.Status.Valid() {
		return InvalidField("status", "%q is none; use OK, WARNING, CRITICAL or UNKNOWN", in.Status)
	}
	in.Output = Storable(in.Output, MaxOutputBytes)
	return first(CheckID("serviceId", string(in.ServiceID)), CheckName("check", in.Check))
}

func checkServiceReports(reports []ServiceReportInput) error {
	if len(reports) > MaxServices {
		return InvalidField("instances.services", "there are %d, at most %d are allowed", len(reports), MaxServices)
	}
	for i := range reports {
		m := &reports[i]
		switch {
		case !slices.Contains(ServiceStatuses(), m.Status):
			return InvalidField("instances.services.status", "%.80q is no status of a service", m.Status)
		case !m.Health.Valid():
			return InvalidField("instances.services.health", "%.80q is no health of a service", m.Health)
		case len(m.Checks) > MaxChecks:
			return InvalidField("instances.services.checks", "there are %d, at most %d are allowed", len(m.Checks), MaxChecks)
		}
		if err := first(CheckID("instances.services.id", string(m.ID)), checkSHA256("instances.services.sha256", m.SHA256)); err != nil {
			return err
		}
		m.Reason, m.HealthReason = Printable(m.Reason, MaxReasonBytes), Printable(m.HealthReason, MaxReasonBytes)
		for k := range m.Checks {
			c := &m.Checks[k]
			if err := CheckName("instances.services.checks.name", c.Name); err != nil {
				return err
			}
			if !c.Status.Valid() {
				return InvalidField("instances.services.checks.status", "%.80q is no status of a check", c.Status)
			}
			c.Output = Storable(c.Output, MaxOutputBytes)
		}
	}
	return nil
}
