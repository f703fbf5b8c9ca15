package doctor

import (
	"time"

	"github.com/muster-cloud/muster/agent/nspawn"
)

// Facts are what was found on a machine. An error says why something is wrong or
// could not be looked at, with the remedy where there is one.
type Facts struct {
	Root    bool          // this process is root
	Systemd bool          // systemd is process 1
	Lacks   []nspawn.Lack // what the driver of instances misses

	CgroupV2       bool
	CgroupErr      error // there is no cgroup that limits can be set in
	CgroupReadOnly bool

	NspawnVersion string // its first line; empty: it could not be asked
	Nft           bool   // the tool nft is in PATH
	BusyboxErr    error
	Images        []string // the images that are there
	ImagesErr     error

	DiskLimitErr error // why no instance's disk can be limited

	StateDir Directory
	Listen   Port
	Network  Network
	Names    Names
	Server   Server
}

// Directory is where an agent keeps its instances.
type Directory struct {
	Path      string
	Err       error // it cannot be made or used
	OnOverlay bool
	FreeMB    int64 // free space where it is; -1: not known
	FreeNodes int64 // files that can be made there; -1: not known
}

// Port is where the agent will listen.
type Port struct {
	Address  string
	Loopback bool
	Err      error  // it cannot be listened on
	Agent    string // an agent of this name listens there already; empty: none
}

// Network is that of the instances.
type Network struct {
	Prefix string
	Whole  bool  // of the whole cluster; else the part of this node
	Err    error // a route of this machine overlaps it
}

// Names is where instances ask for names.
type Names struct {
	Servers []string
	Left    bool  // to their images
	Err     error // the file that names them cannot be read
}

// Server is what an agent here would talk to.
type Server struct {
	URL     string
	Unnamed bool // nobody said which
	Local   bool // on this machine, by its address
	Err     error
	Refused bool // it answers, but does not tell its version
	Version string
	Clock   *time.Duration // how far this machine's clock is ahead of the server's; nil: not known
}
