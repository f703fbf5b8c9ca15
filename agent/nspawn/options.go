package nspawn

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/network"
)

// Options say where and how a Driver works. Only StateDir has to be given.
type Options struct {
	StateDir     string        // absolute; on a real file system, not on an overlay
	Images       *image.Store  // default: images in the state directory
	CgroupPrefix string        // the group of all machines, below the own ones, or systemd's slice of them; default "muster"
	Launcher     Launcher      // what starts machines; default Auto
	ResolvConf   string        // what machines have as /etc/resolv.conf: ResolvAuto, ResolvOff or a file of the host's; default ResolvAuto
	Self         string        // the binary that has the hidden command `shim`; default this one
	Processes    int           // how many processes and threads a machine may have; default 4096
	Parallel     int           // how many launches work at a time; default 2 a core
	StartTimeout time.Duration // until a payload has to run; default 30 s, for a booted image 2 min
	HostPaths    []string      // absolute and clean: what machines may see of the host's files, with what is below; default none
	Logger       *slog.Logger  // default: none

	Reached failpoint.Hook // told each step of what is done with a machine, for tests; default: none
	Environ []string       // of the supervisors, beside PATH and LANG; default: none
}

// Driver runs machines with systemd-nspawn. It implements driver.Driver, driver.Images, driver.Logs, driver.Stats, driver.Volumes, driver.Disks,
// driver.Processes, driver.ProcessLogs, driver.Exec, driver.Artifacts and driver.Dialer.
type Driver struct {
	opts    Options
	images  *image.Store
	network *network.Network
	choice  choice
	keys    keys
	slots   chan struct{}

	mu       sync.Mutex             // claims, disks, and what goes with the last machine
	swept    bool                   // what crashes left is removed
	children map[string]*os.Process // supervisors of this process's, to be reaped
}

// New returns a driver of the machines in a state directory. It starts nothing and touches nothing.
func New(opts Options) *Driver {
	opts.StateDir = filepath.Clean(opts.StateDir) // names follow from it
	if opts.Images == nil {
		opts.Images = image.Open(filepath.Join(opts.StateDir, "images"))
	}
	if opts.CgroupPrefix == "" {
		opts.CgroupPrefix = "muster"
	}
	if opts.Launcher == "" {
		opts.Launcher = Auto
	}
	if opts.ResolvConf == "" {
		opts.ResolvConf = ResolvAuto
	}
	if opts.Processes == 0 {
		opts.Processes = 4096
	}
	if opts.Parallel == 0 {
		opts.Parallel = 2 * runtime.NumCPU()
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Driver{
		opts:     opts,
		images:   opts.Images,
		network:  network.New(opts.StateDir),
		keys:     keys{held: map[string]*key{}},
		slots:    make(chan struct{}, opts.Parallel),
		children: map[string]*os.Process{},
	}
	if opts.Reached != nil {
		d.network.Made = func(what, machine string) { opts.Reached(failpoint.Step("launch:"+what+"-made"), machine) }
	}
	return d
}

// Images returns the images that Launch finds: the host's own by name, those pulled
// from a server by name and digest; sorted.
func (d *Driver) Images(context.Context) ([]string, error) {
	own, err := d.images.List()
	if err != nil {
		return nil, err
	}
	pulled, err := d.images.Pulled()
	if err != nil {
		return nil, err
	}
	refs := make([]string, 0, len(own)+len(pulled))
	for _, img := range append(own, pulled...) {
		refs = append(refs, muster.ImageRef(img.Name, img.Digest))
	}
	slices.Sort(refs)
	return refs, nil
}

// Network returns the network of the driver's machines, such as to check a subnet before it is used.
func (d *Driver) Network() *network.Network { return d.network }
