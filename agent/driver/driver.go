package driver

import (
	"context"
	"errors"
	"time"

	"github.com/muster-cloud/muster"
)

// State is what a driver knows of a machine.
type State string

// The states of a machine.
const (
	// Preparing: being launched, or its launch was interrupted.
	Preparing State = "PREPARING"
	// Running: its payload runs, within limits that were read back.
	Running State = "RUNNING"
	// Exited: its payload ended, or it could not start. Its files are still there.
	Exited State = "EXITED"
)

// Errors that callers tell apart with errors.Is.
var (
	ErrNotFound = errors.New("no such machine")
	ErrExists   = errors.New("the machine exists already")
	ErrNoImage  = errors.New("no such image")
	ErrInUse    = errors.New("a machine uses it")
)

// Spec is what to launch. It is written down beside the machine.
type Spec struct {
	Machine     string            `json:"machine"`               // unique on the host, at most 63 characters of [a-z0-9-]; such as k3f9-i-1-2
	Disk        string            `json:"disk"`                  // what is kept between generations; such as k3f9-i-1
	Instance    string            `json:"instance"`              // the registry's id, such as i-1
	Generation  int64             `json:"generation"`            // which start of it
	Epoch       string            `json:"epoch"`                 // the registry's history that assigned it
	Hostname    string            `json:"hostname"`              // inside; underscores become hyphens
	Image       string            `json:"image"`                 // by name
	ImageDigest string            `json:"imageDigest,omitempty"` // of the server's image that it is; empty: the host's own of that name
	Command     []string          `json:"command"`               // empty: the image's own, else one that idles
	Env         map[string]string `json:"env"`                   // for the payload
	CPUPercent  int               `json:"cpuPercent"`            // quota, of one core
	MemoryMB    int               `json:"memoryMb"`              // limit, MiB; no swap
	Addr        string            `json:"addr"`                  // with prefix length, such as 10.213.0.2/24; empty: no network but loopback
	Gateway     string            `json:"gateway"`               // the node's address in that network
	// Volumes are what it sees of its host's directories; only a driver with the ability Volumes takes any.
	Volumes []muster.VolumeMount `json:"volumes,omitempty"`
	// DiskLimitMB limits what is written to its disk, in MiB; 0: no limit. Only a driver with the ability Disks has one.
	DiskLimitMB int `json:"diskLimitMb,omitempty"`
}

// Status is a machine as it is.
type Status struct {
	Spec     Spec      `json:"spec"`
	State    State     `json:"state"`
	PID      int       `json:"pid"`      // of its init on the host while it runs
	ExitCode *int      `json:"exitCode"` // of the payload; nil when unknown or killed by a signal
	Reason   string    `json:"reason"`   // why it ended or could not start: "exited with status 7", "out of memory", …
	OOM      bool      `json:"oom"`      // the kernel killed for memory in it
	Cut      bool      `json:"cut"`      // its launch was cut off, such as by the end of the agent, and may be tried again
	Output   string    `json:"output"`   // once Exited: the end of its console, at most OutputLimit bytes of valid UTF-8
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
}

// OutputLimit is how much of a console's end a Status carries, in bytes.
const OutputLimit = 4096

// Driver runs machines. All methods are safe for concurrent use; calls for one
// machine are serialised by the driver.
type Driver interface {
	// Launch makes a machine and returns when its payload runs within limits that were read back from the kernel,
	// or has ended already. A launch that fails leaves nothing but an Exited machine with its reason: it returns that
	// Status and no error. Errors are for what could not be tried: ErrExists, ErrNoImage, a host that lacks a tool.
	// A machine whose Disk an Exited one of a lower generation has takes the disk over, as it was left, and replaces it;
	// one whose Disk a live machine has is ErrExists.
	Launch(ctx context.Context, spec Spec) (Status, error)
	// Stop ends the payload: gracefully, and after grace by force. It returns once the machine has Exited.
	Stop(ctx context.Context, machine string, grace time.Duration) (Status, error)
	// Remove stops a machine by force if need be and deletes everything of it, its disk too. Removing what is not there
	// is no error.
	Remove(ctx context.Context, machine string) error
	// List returns every machine of this state directory, also those of an earlier driver, sorted by name.
	List(ctx context.Context) ([]Status, error)
	// Watch sends a machine's name whenever its state may have changed by itself, such as when its payload ended;
	// names may repeat and be coalesced. The channel is closed when ctx ends.
	Watch(ctx context.Context) <-chan string
}

// Images is the optional ability to say which images a host has.
type Images interface {
	// Images returns the images that Launch would find, as muster.ImageRef writes them, sorted.
	Images(ctx context.Context) ([]string, error)
}
