package muster

import (
	"maps"
	"slices"
	"time"
)

// Instance is a systemd-nspawn container on a node.
type Instance struct {
	ID           InstanceID     `gorm:"column:id;primaryKey" json:"id"`
	Name         string         `gorm:"column:name" json:"name"`
	NodeUID      NodeUID        `gorm:"column:node_uid" json:"nodeUid"`
	Type         InstanceType   `gorm:"column:type" json:"type"`
	CPULimit     int            `gorm:"column:cpu_limit" json:"cpuLimit"` // per cent of one core
	MemLimitMB   int            `gorm:"column:mem_limit_mb" json:"memLimitMb"`
	BaseImage    string         `gorm:"column:base_image" json:"baseImage"`
	Command      []string       `gorm:"column:command;serializer:json" json:"command"`
	EnvNames     []string       `gorm:"column:env_names;serializer:json" json:"envNames"`
	Labels       Map            `gorm:"column:labels;serializer:json" json:"labels"`
	NodeSelector Map            `gorm:"column:node_selector;serializer:json" json:"nodeSelector"`
	Volumes      []VolumeMount  `gorm:"column:volumes;serializer:json" json:"volumes"`
	DiskLimitMB  int            `gorm:"column:disk_limit_mb" json:"diskLimitMb,omitempty"` // of its own disk; 0: none
	Status       InstanceStatus `gorm:"column:status" json:"status"`
	StatusReason string         `gorm:"column:status_reason" json:"statusReason"`
	Desired      DesiredStatus  `gorm:"column:desired" json:"desired"`
	Generation   int64          `gorm:"column:generation" json:"generation"`
	Machine      string         `gorm:"column:machine" json:"machine"`
	Addr         string         `gorm:"column:addr" json:"addr"`
	PID          *int           `gorm:"column:pid" json:"pid"`
	ExitCode     *int           `gorm:"column:exit_code" json:"exitCode"`
	CreatedAt    time.Time      `gorm:"column:created_at;autoCreateTime:false" json:"createdAt"`
	StartedAt    *time.Time     `gorm:"column:started_at" json:"startedAt"`
	EndedAt      *time.Time     `gorm:"column:ended_at" json:"endedAt"`
	TerminatedAt *time.Time     `gorm:"column:terminated_at" json:"terminatedAt"`
	// QueueDeadline is until when it may wait for a node.
	QueueDeadline *time.Time `gorm:"column:queue_deadline" json:"queueDeadline"`
	// DrainUntil is until when what runs of it goes on although it is to end, or to start
	// anew: the latest that its services need; nil: it ends at once.
	DrainUntil *time.Time `gorm:"column:drain_until" json:"drainUntil"`
	// Reserved says that it holds its CPU and memory on its node.
	Reserved bool `gorm:"column:reserved" json:"reserved"`
	// DesiredRevision is the revision that last changed what its node should do about it.
	DesiredRevision int64 `gorm:"column:desired_revision" json:"desiredRevision"`
	// Revision is that of its newest change.
	Revision int64 `gorm:"column:revision" json:"revision"`
	// ImageDigest is that of its image when it was placed; empty: its node's own image.
	ImageDigest string `gorm:"column:image_digest" json:"imageDigest"`
	// PinnedNode is the node that the launch asked for, if any.
	PinnedNode NodeUID `gorm:"column:pinned_node" json:"pinnedNode"`
	// Env has secrets: it goes to the node, never into a change.
	Env Map `gorm:"column:env;serializer:json" json:"-"`
	// Output is the end of the console once it has ended; volatile, never part of a change.
	Output string `gorm:"column:output" json:"-"`
}

// TableName is the table that holds instances.
func (Instance) TableName() string { return "instances" }

// Clone returns a copy that can be changed.
func (i *Instance) Clone() *Instance {
	c := *i
	c.Command = slices.Clone(i.Command)
	c.EnvNames = slices.Clone(i.EnvNames)
	c.Labels = i.Labels.Clone()
	c.NodeSelector = i.NodeSelector.Clone()
	c.Env = i.Env.Clone()
	c.Volumes = slices.Clone(i.Volumes)
	return &c
}

// InstanceFilter selects instances; all given parts must match. NodeID is a
// node's id or uid, resolved by the registry into NodeUID.
type InstanceFilter struct {
	Status  []InstanceStatus `json:"status,omitempty"`
	NodeID  *string          `json:"nodeId,omitempty"`
	Type    *InstanceType    `json:"type,omitempty"`
	Name    *string          `json:"name,omitempty"`
	Labels  Map              `json:"labels,omitempty"`
	NodeUID NodeUID          `json:"-"`
}

// Matches reports whether the filter selects i; a nil filter selects all.
func (f *InstanceFilter) Matches(i *Instance) bool {
	if f == nil {
		return true
	}
	return (len(f.Status) == 0 || slices.Contains(f.Status, i.Status)) &&
		(f.NodeUID == "" || f.NodeUID == i.NodeUID) &&
		(f.Type == nil || *f.Type == i.Type) &&
		(f.Name == nil || *f.Name == i.Name) &&
		i.Labels.Matches(f.Labels)
}

// LaunchInstanceInput says what to launch.
type LaunchInstanceInput struct {
	Type         InstanceType   `json:"type"`
	Name         string         `json:"name"`
	Image        string         `json:"image"`
	Command      []string       `json:"command"`
	Env          Map            `json:"env"`
	Labels       Map            `json:"labels"`
	NodeSelector Map            `json:"nodeSelector"`
	Volumes      []VolumeMount  `json:"volumes,omitempty"`
	DiskLimitMB  int            `json:"diskLimitMb,omitempty"` // 0: none
	NodeID       *string        `json:"nodeId,omitempty"`
	Queue        bool           `json:"queue"`
	QueueTimeout *time.Duration `json:"queueTimeout,omitempty"`
	RequestID    string         `json:"requestId"`
}

// InstanceReportInput is one machine as its agent sees it.
type InstanceReportInput struct {
	Machine    string         `json:"machine"`
	Epoch      string         `json:"epoch"`
	ID         InstanceID     `json:"id"`
	Generation int64          `json:"generation"`
	Status     InstanceStatus `json:"status"`
	Reason     string         `json:"reason"`
	PID        *int           `json:"pid,omitempty"`
	ExitCode   *int           `json:"exitCode,omitempty"`
	Output     string         `json:"output"`
	Addr       string         `json:"addr"`
	CPULimit   int            `json:"cpuLimit"`
	MemLimitMB int            `json:"memLimitMb"`
	BaseImage  string         `json:"baseImage"`
	// ImageDigest is that of the server's image that it started from; empty: its node's own.
	ImageDigest string               `json:"imageDigest,omitempty"`
	Volumes     []VolumeMount        `json:"volumes,omitempty"`
	DiskLimitMB int                  `json:"diskLimitMb,omitempty"` // 0: none
	Services    []ServiceReportInput `json:"services,omitempty"`
}

// ReportInstancesInput is the whole inventory of a node.
type ReportInstancesInput struct {
	UID             NodeUID               `json:"uid"`
	Incarnation     int64                 `json:"incarnation"`
	Sequence        int64                 `json:"sequence"`
	Epoch           string                `json:"epoch"`
	AppliedRevision int64                 `json:"appliedRevision"`
	Images          []string              `json:"images,omitempty"`
	Volumes         []string              `json:"volumes,omitempty"` // nil: as before
	Instances       []InstanceReportInput `json:"instances"`
}

// EnvNamesOf returns the sorted names of an environment.
func EnvNamesOf(env Map) []string { return slices.Sorted(maps.Keys(env)) }
