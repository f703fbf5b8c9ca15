package muster

import (
	"slices"
	"time"
)

// NodeRole is what a node is for.
type NodeRole string

// The roles of a node.
const (
	Compute     NodeRole = "COMPUTE"
	ServiceRole NodeRole = "SERVICE"
)

// Node is a machine with an agent.
type Node struct {
	UID      NodeUID  `gorm:"column:uid;primaryKey" json:"uid"`
	ID       NodeID   `gorm:"column:id" json:"id"`
	Hostname string   `gorm:"column:hostname" json:"hostname"`
	Addr     string   `gorm:"column:addr" json:"addr"`
	Port     int      `gorm:"column:port" json:"port"`
	Secure   bool     `gorm:"column:secure" json:"secure"` // its agent takes calls by TLS, from the server only
	Role     NodeRole `gorm:"column:role" json:"role"`
	CPUCount int      `gorm:"column:cpu_count" json:"cpuCount"`
	MemoryMB int      `gorm:"column:memory_mb" json:"memoryMb"`
	Labels   Map      `gorm:"column:labels;serializer:json" json:"labels"`
	// AgentLabels are those that the agent gave, LabelEdits what operators changed
	// since; Labels is the one with the other.
	AgentLabels  Map        `gorm:"column:agent_labels;serializer:json" json:"agentLabels"`
	LabelEdits   Edits      `gorm:"column:label_edits;serializer:json" json:"labelEdits"`
	Images       []string   `gorm:"column:images;serializer:json" json:"images"`
	Version      string     `gorm:"column:version" json:"version"`
	BootID       string     `gorm:"column:boot_id" json:"bootId"`
	Incarnation  int64      `gorm:"column:incarnation" json:"incarnation"`
	Status       NodeStatus `gorm:"column:status" json:"status"`
	StatusReason string     `gorm:"column:status_reason" json:"statusReason"`
	// StatusSince is when it got this status.
	StatusSince time.Time `gorm:"column:status_since" json:"statusSince"`
	Schedulable bool      `gorm:"column:schedulable" json:"schedulable"`
	// Drain is how far its instances have been sent away; nil when that was not asked for.
	Drain *Drain `gorm:"column:drain;serializer:json" json:"drain"`
	// Volumes are the names of those that it has, RemovingVolumes those that it is
	// to remove; HostPaths are what instances may have of its own files.
	Volumes         []string `gorm:"column:volumes;serializer:json" json:"volumes"`
	RemovingVolumes []string `gorm:"column:removing_volumes;serializer:json" json:"removingVolumes,omitempty"`
	HostPaths       []string `gorm:"column:host_paths;serializer:json" json:"hostPaths"`
	// DiskLimits says that it can limit the disks of instances.
	DiskLimits bool `gorm:"column:disk_limits" json:"diskLimits,omitempty"`
	// DesiredRevision is the revision that last changed what it should do beside its instances.
	DesiredRevision int64 `gorm:"column:desired_revision" json:"desiredRevision,omitempty"`
	// Forgotten says that the machine is gone for good: its name and uid are free again.
	Forgotten bool `gorm:"column:forgotten" json:"forgotten,omitempty"`
	// Subnet is the network of the node's instances, a /24; its first address is the node's own.
	Subnet       string    `gorm:"column:subnet" json:"subnet"`
	RegisteredAt time.Time `gorm:"column:registered_at" json:"registeredAt"`
	// BirthHash is of the token by which the agent is known before it knows its uid; empty: it gave none. It is no part of a change.
	BirthHash string `gorm:"column:birth_hash" json:"-"`
	// Revision is that of the node's newest change.
	Revision int64 `gorm:"column:revision" json:"revision"`
	// LastSeen is volatile: flushed once a minute as a column, never part of a change.
	LastSeen time.Time `gorm:"column:last_seen" json:"-"`
}

// TableName is the table that holds nodes.
func (Node) TableName() string { return "nodes" }

// Live reports whether the node is in the registry: neither pruned nor removed.
func (n *Node) Live() bool { return n.Status == Healthy || n.Status == Unhealthy }

// Clone returns a copy that can be changed.
func (n *Node) Clone() *Node {
	c := *n
	c.Labels = n.Labels.Clone()
	c.Images = slices.Clone(n.Images)
	c.Volumes, c.RemovingVolumes, c.HostPaths = slices.Clone(n.Volumes), slices.Clone(n.RemovingVolumes), slices.Clone(n.HostPaths)
	c.AgentLabels, c.LabelEdits = n.AgentLabels.Clone(), n.LabelEdits.Clone()
	return &c
}

// Drain is a node being emptied: its instances may end by themselves until the
// deadline, and are stopped then.
type Drain struct {
	Since    time.Time  `json:"since"`
	Deadline *time.Time `json:"deadline"` // nil: it waits for as long as it takes
	Stopping bool       `json:"stopping"` // the deadline has passed
	Done     *time.Time `json:"done"`     // when nothing ran there any more
}

// DrainNodeInput says which node to drain.
type DrainNodeInput struct {
	ID       string         `json:"id"`
	Deadline *time.Duration `json:"deadline,omitempty"` // from now; nil: none
	Reason   string         `json:"reason"`
}

// LabelInput edits labels of a node or an instance.
type LabelInput struct {
	ID     string   `json:"id"`
	Set    Map      `json:"set,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// Validate refuses edits that cannot be made.
func (in *LabelInput) Validate() error {
	if err := first(CheckID("id", in.ID), CheckMap("set", in.Set)); err != nil {
		return err
	}
	for _, k := range in.Remove {
		if err := CheckText("remove", k, MaxMapKeyBytes); err != nil {
			return err
		}
		if _, both := in.Set[k]; both {
			return InvalidField("remove", "%q is both set and removed", k)
		}
	}
	if len(in.Set)+len(in.Remove) == 0 {
		return InvalidField("set", "nothing is set or removed; give at least one label")
	}
	return nil
}

// NodeFilter selects nodes; all given parts must match.
type NodeFilter struct {
	Status      []NodeStatus `json:"status,omitempty"`
	Role        *NodeRole    `json:"role,omitempty"`
	Schedulable *bool        `json:"schedulable,omitempty"`
	Labels      Map          `json:"labels,omitempty"`
}

// Matches reports whether the filter selects n; a nil filter selects all.
func (f *NodeFilter) Matches(n *Node) bool {
	if f == nil {
		return true
	}
	return (len(f.Status) == 0 || slices.Contains(f.Status, n.Status)) &&
		(f.Role == nil || *f.Role == n.Role) &&
		(f.Schedulable == nil || *f.Schedulable == n.Schedulable) &&
		n.Labels.Matches(f.Labels)
}

// Capacity is an amount of CPU and memory.
type Capacity struct {
	CPUPercent int `json:"cpuPercent"` // of one core
	MemoryMB   int `json:"memoryMb"`
	Instances  int `json:"instances"`
}

// RegisterNodeInput announces a node with its whole inventory.
type RegisterNodeInput struct {
	ID              NodeID                `json:"id"`
	UID             *NodeUID              `json:"uid,omitempty"`
	BirthToken      string                `json:"birthToken,omitempty"`
	Hostname        string                `json:"hostname"`
	Addr            string                `json:"addr"`
	Port            int                   `json:"port"`
	Secure          bool                  `json:"secure,omitempty"`
	Role            NodeRole              `json:"role"`
	CPUCount        int                   `json:"cpuCount"`
	MemoryMB        int                   `json:"memoryMb"`
	Labels          Map                   `json:"labels"`
	Incarnation     int64                 `json:"incarnation"`
	Version         string                `json:"version"`
	BootID          string                `json:"bootId"`
	Images          []string              `json:"images"`
	Volumes         []string              `json:"volumes,omitempty"`
	HostPaths       []string              `json:"hostPaths,omitempty"`
	DiskLimits      bool                  `json:"diskLimits,omitempty"`
	Epoch           string                `json:"epoch"`
	AppliedRevision int64                 `json:"appliedRevision"`
	Instances       []InstanceReportInput `json:"instances"`
}

// HeartbeatInput says who beats.
type HeartbeatInput struct {
	UID         NodeUID    `json:"uid"`
	Incarnation int64      `json:"incarnation"`
	SentAt      *time.Time `json:"sentAt,omitempty"` // by the node's clock
	// Usage is what was measured last; nil: nothing was.
	Usage *UsageInput `json:"usage,omitempty"`
}

// Beat is the answer to a heartbeat.
type Beat struct {
	NextBeatIn      time.Duration
	Epoch           string
	DesiredRevision int64
	// ReportSequence is that of the newest report of this incarnation that has been
	// applied; 0: none since the server started or the node registered.
	ReportSequence int64
	// Peers is the tag of the node's peers.
	Peers string
}

// Peers is the cluster's networks as a node has to know them.
type Peers struct {
	Tag     string // different when anything of this is
	Network string // of all instances of the cluster
	Subnet  string // of the node's own instances
	Nodes   []*Peer
}

// Peer is where the instances of another node are reached.
type Peer struct {
	ID     NodeID
	Addr   string
	Subnet string
}

// Assignments is what the registry wants of a node, in full at DesiredRevision.
type Assignments struct {
	Epoch           string
	DesiredRevision int64
	Subnet          string
	Instances       []*Assignment
	// RemoveVolumes are the volumes to delete.
	RemoveVolumes []string
}

// Assignment is what the registry wants of one instance.
type Assignment struct {
	ID         InstanceID
	Generation int64
	Machine    string
	Desired    DesiredStatus
	Ended      bool // the generation ended by itself: leave it alone
	Name       string
	BaseImage  string
	// ImageDigest is that of the server's image to start from; empty: the node's own.
	ImageDigest string
	Command     []string
	Env         Map
	CPULimit    int // per cent of one core
	MemLimitMB  int
	Addr        string
	Volumes     []VolumeMount
	DiskLimitMB int // of its own disk; 0: none
	// Drain is how much longer what runs of it goes on before it is stopped, started anew or removed.
	Drain    time.Duration
	Services []*ServiceAssignment
}
