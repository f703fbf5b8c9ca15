package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
	"github.com/muster-cloud/muster/client"
)

// Options say which agent a machine is examined for.
type Options struct {
	Machines nspawn.Options // the driver of its instances; StateDir has to be there
	AtWork   bool           // an agent holds that directory now
	Listen   string         // where it will listen; has to be there
	Node     string         // its id; has to be there
	Network  netip.Prefix   // of all instances of the cluster; has to be there
	Client   *client.Client // of its server; nil: it is not known which
	Patience time.Duration  // for each answer of the network; default 3 s
}

// Gather looks at the machine. It changes nothing, but that it may load the
// modules of overlayfs and ext4, as root. INVALID: options that no agent can have; else the
// error is ctx's.
func Gather(ctx context.Context, o Options) (Facts, error) {
	if o.Patience <= 0 {
		o.Patience = 3 * time.Second
	}
	machines := nspawn.New(o.Machines)
	f := Facts{Root: os.Geteuid() == 0}
	var err error
	if f.Lacks, err = machines.Lacks(ctx); err != nil {
		return f, err
	}
	_, noSystemd := os.Stat("/run/systemd/system")
	f.Systemd = noSystemd == nil
	f.lookAtCgroups()
	f.lookForPrograms(ctx)
	f.lookForImages(o.Machines.StateDir)
	f.DiskLimitErr = machines.DiskLimits(ctx)
	f.StateDir = lookAtDirectory(o.Machines.StateDir)
	f.Listen = lookAtPort(ctx, o)
	f.Names = lookForNames(machines, o.Machines.ResolvConf)
	f.Server = lookAtServer(ctx, o)
	f.Network = o.lookAtNetwork(ctx, machines, o.Client != nil && f.Server.Err == nil)
	return f, ctx.Err()
}

func (f *Facts) lookAtCgroups() {
	own, err := cgroup.Find("")
	if f.CgroupErr = err; err != nil {
		return
	}
	group := own.Group("doctor").Parent() // which makes nothing
	f.CgroupV2 = group.V2
	for _, dir := range group.Dirs {
		f.CgroupReadOnly = f.CgroupReadOnly || unix.Access(dir, unix.W_OK) != nil
	}
}

func (f *Facts) lookForPrograms(ctx context.Context) {
	if out, err := exec.CommandContext(ctx, "systemd-nspawn", "--version").Output(); err == nil {
		line, _, _ := bytes.Cut(out, []byte("\n"))
		f.NspawnVersion = string(line)
	}
	_, err := exec.LookPath("nft")
	if err != nil { // where it is on Debian, which is not in everybody's PATH
		_, err = os.Stat("/usr/sbin/nft")
	}
	f.Nft = err == nil
	_, f.BusyboxErr = image.FindBusybox("")
}

func (f *Facts) lookForImages(stateDir string) {
	images, err := image.Open(filepath.Join(stateDir, "images")).List()
	f.ImagesErr = err
	for _, i := range images {
		f.Images = append(f.Images, i.Name)
	}
}

// lookAtDirectory looks at a directory, or at the first one above it that is there.
func lookAtDirectory(path string) Directory {
	d := Directory{Path: path, FreeMB: -1, FreeNodes: -1}
	there := path
	for !exists(there) && there != filepath.Dir(there) {
		there = filepath.Dir(there)
	}
	if info, err := os.Stat(there); err != nil {
		d.Err = err
	} else if !info.IsDir() {
		d.Err = fmt.Errorf("%s is not a directory", there)
	} else if err := unix.Access(there, unix.W_OK|unix.X_OK); err != nil {
		d.Err = fmt.Errorf("%s cannot be written: %w", there, err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(there, &disk); err == nil {
		d.OnOverlay = disk.Type == unix.OVERLAYFS_SUPER_MAGIC
		d.FreeMB = int64(disk.Bavail) * disk.Bsize >> 20
		if disk.Files > 0 { // some file systems have no such limit
			d.FreeNodes = int64(disk.Ffree)
		}
	}
	return d
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// lookForNames looks which name servers instances would have.
func lookForNames(machines *nspawn.Driver, setting string) Names {
	text, err := machines.Resolver()
	n := Names{Left: setting == nspawn.ResolvOff, Err: err}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "nameserver" {
			n.Servers = append(n.Servers, words[1])
		}
	}
	return n
}

// lookAtPort listens for a moment; where that fails it asks who is there.
func lookAtPort(ctx context.Context, o Options) Port {
	p := Port{Address: o.Listen, Loopback: isLoopback(o.Listen)}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Listen)
	if err == nil {
		_ = listener.Close()
		return p
	}
	if p.Err = err; errors.Is(err, syscall.EADDRINUSE) {
		p.Err = errors.New("it is in use")
		if p.Agent = askAgent(ctx, o); p.Agent == "" && o.AtWork { // one that joined answers its server alone
			p.Agent = o.Node
		}
	}
	return p
}

// askAgent returns the id of the agent that listens; empty: it is none.
func askAgent(ctx context.Context, o Options) string {
	var who struct {
		ID string `json:"id"`
	}
	body, err := get(ctx, "http://"+o.Listen+"/identity", o.Patience)
	if err != nil || json.Unmarshal(body, &who) != nil {
		return ""
	}
	return who.ID
}

func lookAtServer(ctx context.Context, o Options) Server {
	if o.Client == nil {
		return Server{Unnamed: true}
	}
	endpoint, err := url.Parse(o.Client.URL())
	if err != nil {
		return Server{URL: o.Client.URL(), Err: err}
	}
	s := Server{URL: endpoint.Scheme + "://" + endpoint.Host, Local: isLocal(endpoint.Hostname())}
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	info, err := o.Client.ServerInfo(ctx)
	switch {
	case err == nil:
		s.Version = info.Version
	case muster.CodeOf(err) == muster.Unauthenticated, muster.CodeOf(err) == muster.Forbidden: // it answers: an agent asks for other things
		s.Refused = true
	default:
		s.Err = err
		return s
	}
	asked := time.Now()
	at, err := o.Client.ServerTime(ctx)
	now := time.Now()
	if err == nil {
		// Its seconds are cut off, and it was written on the way.
		ahead := asked.Add(now.Sub(asked) / 2).Sub(at.Add(500 * time.Millisecond))
		s.Clock = &ahead
	}
	return s
}

// lookAtNetwork looks for routes into what this node's instances have, or would
// have where the server does not know it yet, or cannot be asked.
func (o Options) lookAtNetwork(ctx context.Context, machines *nspawn.Driver, ask bool) Network {
	n := Network{Prefix: o.Network.String(), Whole: true}
	prefix := o.Network
	if ask {
		if own, ok := o.subnet(ctx); ok {
			prefix, n.Prefix, n.Whole = own, own.String(), false
		}
	}
	n.Err = machines.Network().Check(prefix)
	return n
}

// subnet asks the server for the network of this node's instances.
func (o Options) subnet(ctx context.Context) (netip.Prefix, bool) {
	ctx, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	node, err := o.Client.Node(ctx, o.Node)
	if err != nil {
		return netip.Prefix{}, false
	}
	prefix, err := netip.ParsePrefix(node.Subnet)
	return prefix, err == nil
}

// get makes one request, of which it reads 64 KiB at most.
func get(ctx context.Context, address string, patience time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	var body bytes.Buffer
	_, err = body.ReadFrom(http.MaxBytesReader(nil, response.Body, 64<<10))
	return body.Bytes(), err
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && isLoopbackHost(host)
}

func isLoopbackHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// isLocal tells whether a host is this machine, as far as its name or address says.
func isLocal(host string) bool {
	if isLoopbackHost(host) {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	for _, addr := range addrs {
		if own, ok := addr.(*net.IPNet); err == nil && ok && own.IP.String() == host {
			return true
		}
	}
	return false
}
