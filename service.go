package muster

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// ServiceID is a service's identity: `svc-1`, `svc-2`, …; never reused.
type ServiceID string

// ServiceSequence is the name of the sequence of service ids.
const ServiceSequence = "service"

// Service is an application in an instance.
type Service struct {
	ID         ServiceID  `gorm:"column:id;primaryKey" json:"id"`
	Name       string     `gorm:"column:name" json:"name"`
	InstanceID InstanceID `gorm:"column:instance_id" json:"instanceId"`
	// OwnsInstance says that the instance was launched for it, and goes with it.
	OwnsInstance bool `gorm:"column:owns_instance" json:"ownsInstance"`
	// Announced says that somebody else runs the process: it is only checked.
	Announced bool `gorm:"column:announced" json:"announced"`

	DeployURL string `gorm:"column:deploy_url" json:"deployUrl"`
	// SHA256 is the checksum of its files: that was given, or else of those that its node fetched first.
	SHA256   string   `gorm:"column:sha256" json:"sha256"`
	Command  []string `gorm:"column:command;serializer:json" json:"command"`
	EnvNames []string `gorm:"column:env_names;serializer:json" json:"envNames"`
	User     string   `gorm:"column:user" json:"user"`
	Dir      string   `gorm:"column:dir" json:"dir"`
	Port     int      `gorm:"column:port" json:"port"` // inside the instance; 0: none
	// Publish is at which port of the node it is reached; nil: at none.
	Publish *Published    `gorm:"column:publish;serializer:json" json:"publish"`
	Checks  []Check       `gorm:"column:checks;serializer:json" json:"checks"`
	Restart RestartPolicy `gorm:"column:restart;serializer:json" json:"restart"`

	RegisterWhenStable []RegistrationSpec `gorm:"column:registrations;serializer:json" json:"registerWhenStable"`
	StableFor          time.Duration      `gorm:"column:stable_for" json:"stableFor"`
	// DrainFor is how long it goes on when it is to be stopped, after its entries have
	// been withdrawn: for those who have looked it up before.
	DrainFor time.Duration `gorm:"column:drain_for" json:"drainFor"`
	// DrainUntil is until when its process goes on although it is to end, or to start
	// anew; nil: it ends at once.
	DrainUntil *time.Time `gorm:"column:drain_until" json:"drainUntil"`

	Status       ServiceStatus `gorm:"column:status" json:"status"`
	StatusReason string        `gorm:"column:status_reason" json:"statusReason"`
	// Health is what the agent last said; its node and its instance count too, which
	// the registry adds.
	Health       ServiceHealth `gorm:"column:health" json:"health"`
	HealthReason string        `gorm:"column:health_reason" json:"healthReason"`
	CheckResults []CheckResult `gorm:"column:check_results;serializer:json" json:"checkResults"`
	Desired      DesiredStatus `gorm:"column:desired" json:"desired"`
	Generation   int64         `gorm:"column:generation" json:"generation"` // raised at each start that somebody asks for
	Restarts     int           `gorm:"column:restarts" json:"restarts"`     // by policy, since that start
	PID          *int          `gorm:"column:pid" json:"pid"`
	ExitCode     *int          `gorm:"column:exit_code" json:"exitCode"`
	CreatedAt    time.Time     `gorm:"column:created_at;autoCreateTime:false" json:"createdAt"`
	StartedAt    *time.Time    `gorm:"column:started_at" json:"startedAt"`
	EndedAt      *time.Time    `gorm:"column:ended_at" json:"endedAt"`
	RemovedAt    *time.Time    `gorm:"column:removed_at" json:"removedAt"`
	// DesiredRevision is the revision that last changed what its node should do about it.
	DesiredRevision int64 `gorm:"column:desired_revision" json:"desiredRevision"`
	// Revision is that of its newest change.
	Revision int64 `gorm:"column:revision" json:"revision"`
	// Env has secrets: it goes to the node, never into a change.
	Env Map `gorm:"column:env;serializer:json" json:"-"`
}

// TableName is the table that holds services.
func (Service) TableName() string { return "services" }

// Clone returns a copy that can be changed; its lists are replaced, not changed.
func (s *Service) Clone() *Service {
	c := *s
	c.Env = maps.Clone(s.Env)
	return &c
}

// Gone reports whether nothing is left of it.
func (s *Service) Gone() bool { return s.Status == ServiceRemoved }

// PortProtocol is what is published.
type PortProtocol string

// The protocols of ports.
const (
	TCP PortProtocol = "TCP"
	UDP PortProtocol = "UDP"
)

// Published is a port of a node that leads to a service.
type Published struct {
	Port     int          `json:"port"` // of the node; 0 in an input: any that is free
	Protocol PortProtocol `json:"protocol"`
}

// RestartWhen is after which ends a service is started again.
type RestartWhen string

// The ends that a service is started again after.
const (
	RestartAlways    RestartWhen = "ALWAYS"
	RestartOnFailure RestartWhen = "ON_FAILURE"
	RestartNever     RestartWhen = "NEVER"
)

// RestartPolicy is how a service that ended by itself is started again: after a pause
// that doubles each time, and starts over once it has run for Window.
type RestartPolicy struct {
	When     RestartWhen   `json:"when,omitempty"`
	Backoff  time.Duration `json:"backoff,omitempty"`  // the first pause; 0: 1 s
	Longest  time.Duration `json:"longest,omitempty"`  // the longest pause; 0: 1 min
	Attempts int           `json:"attempts,omitempty"` // in Window, after which it is FAILED; 0: 5; below 0: no limit
	Window   time.Duration `json:"window,omitempty"`   // 0: 10 min
}

// WithDefaults returns the policy with every default filled in.
func (p RestartPolicy) WithDefaults() RestartPolicy {
	if p.When == "" {
		p.When = RestartOnFailure
	}
	if p.Backoff == 0 {
		p.Backoff = time.Second
	}
	if p.Longest == 0 {
		p.Longest = max(time.Minute, p.Backoff)
	}
	if p.Attempts == 0 {
		p.Attempts = 5
	}
	if p.Window == 0 {
		p.Window = 10 * time.Minute
	}
	return p
}

func (p *RestartPolicy) validate() error {
	d := p.WithDefaults()
	switch {
	case d.When != RestartAlways && d.When != RestartOnFailure && d.When != RestartNever:
		return InvalidField("restart.when", "%q is none; use ALWAYS, ON_FAILURE or NEVER", p.When)
	case d.Backoff < 0 || d.Backoff > time.Hour:
		return InvalidField("restart.backoff", "%s is not between 0s and 1h", d.Backoff)
	case d.Longest < d.Backoff || d.Longest > 24*time.Hour:
		return InvalidField("restart.longest", "%s is not between the first pause, %s, and 24h", d.Longest, d.Backoff)
	case d.Attempts > 10_000:
		return InvalidField("restart.attempts", "%d is more than 10000; use -1 for no limit", d.Attempts)
	case d.Window < time.Second || d.Window > 7*24*time.Hour:
		return InvalidField("restart.window", "%s is not between 1s and 168h", d.Window)
	}
	return nil
}

// ServiceFilter selects services; nil fields and a nil filter select all.
type ServiceFilter struct {
	Status     []ServiceStatus `json:"status,omitempty"`
	Health     []ServiceHealth `json:"health,omitempty"`
	Name       *string         `json:"name,omitempty"`
	InstanceID *InstanceID     `json:"instanceId,omitempty"`
	NodeID     *string         `json:"nodeId,omitempty"`
}

// Matches reports whether the filter selects a service by what is its own; its node
// and its health are the registry's to judge.
func (f *ServiceFilter) Matches(s *Service) bool {
	if f == nil {
		return true
	}
	return (len(f.Status) == 0 || slices.Contains(f.Status, s.Status)) &&
		(f.Name == nil || *f.Name == s.Name) &&
		(f.InstanceID == nil || *f.InstanceID == s.InstanceID)
}

// ServiceEdge is a service on a page.
type ServiceEdge struct {
	Cursor string
	Node   *Service
}

// ServiceConnection is a page of services. Count counts all that match, when asked.
type ServiceConnection struct {
	Edges    []*ServiceEdge
	PageInfo *PageInfo
	Count    func() int
}

// TotalCount is how many match in all.
func (c *ServiceConnection) TotalCount() int { return c.Count() }

// ServiceAssignment is what the registry wants of one service.
type ServiceAssignment struct {
	ID         ServiceID
	Generation int64
	Name       string
	Desired    DesiredStatus
	// Ended says that it ended by itself, or cannot be: it is not started again before
	// its generation is raised.
	Ended     bool
	Announced bool
	DeployURL string
	SHA256    string
	Command   []string
	Env       Map
	User      string
	Dir       string
	Port      int
	Publish   *Published
	Checks    []Check
	Restart   RestartPolicy
	// Drain is how much longer its process goes on before it is stopped, started anew or removed.
	Drain time.Duration
}

// ServiceReportInput is one service as its agent sees it.
type ServiceReportInput struct {
	ID           ServiceID     `json:"id"`
	Generation   int64         `json:"generation"`
	Status       ServiceStatus `json:"status"`
	Reason       string        `json:"reason"`
	Health       ServiceHealth `json:"health"`
	HealthReason string        `json:"healthReason"`
	Restarts     int           `json:"restarts"`
	PID          *int          `json:"pid,omitempty"`
	ExitCode     *int          `json:"exitCode,omitempty"`
	SHA256       string        `json:"sha256,omitempty"` // of its files, once they are in place
	Checks       []CheckResult `json:"checks,omitempty"` // with their outputs, which make no change
}

// ServiceIDOf returns the id of the n-th service.
func ServiceIDOf(n int64) ServiceID { return ServiceID("svc-" + strconv.FormatInt(n, 10)) }
