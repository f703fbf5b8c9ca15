package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-cloud/muster/agent/nspawn"
)

// Level is how bad a finding is.
type Level string

// The levels: with FAIL no agent can work here; WARN is worth a look.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Finding is the outcome of one check.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"` // what was found, and if it is not OK, what to do
}

// What is too little, in MiB and files; and what is too far apart.
const (
	leastFree    = 128
	littleFree   = 1024
	littleInodes = 10_000
	clockApart   = 5 * time.Second
)

// Failed reports whether one of the findings is a FAIL.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Level == Fail {
			return true
		}
	}
	return false
}

// Examine judges the facts: one finding for each check, always in the same order.
// version is that of this program.
func Examine(f Facts, version string) []Finding {
	return []Finding{
		f.root(), f.launcher(), f.cgroups(), f.overlay(), f.nspawn(), f.nftables(), f.images(),
		f.stateDir(), f.disk(), f.diskLimits(), f.port(), f.network(), f.names(), f.server(version), f.clock(),
	}
}

func (f Facts) root() Finding {
	if !f.Root {
		return Finding{"root", Warn, "this is not root, so that not everything could be checked; run muster doctor as root, as the agent will be"}
	}
	return Finding{"root", OK, "this is root"}
}

// lack returns what the driver misses of a need; nil: nothing.
func (f Facts) lack(need nspawn.Need) error {
	for _, lack := range f.Lacks {
		if lack.Need == need {
			return lack.Err
		}
	}
	return nil
}

func (f Facts) launcher() Finding {
	err := f.lack(nspawn.NeedLauncher)
	switch {
	case err != nil && !f.Root:
		return told("launcher", Warn, fmt.Errorf("not checked, it needs root: %w", err))
	case err != nil:
		return told("launcher", Fail, err)
	case f.Systemd:
		return Finding{"launcher", OK, "systemd runs this machine: instances become its units"}
	}
	return Finding{"launcher", OK, "systemd does not run this machine: the agent makes the instances' cgroups itself"}
}

func (f Facts) cgroups() Finding {
	version := "v1"
	if f.CgroupV2 {
		version = "v2"
	}
	switch {
	case f.Systemd && f.CgroupErr != nil: // the group of this process need not be a good one: units have their own
		return Finding{"cgroups", OK, "systemd sets the limits"}
	case f.CgroupErr != nil:
		return told("cgroups", Fail, f.CgroupErr)
	case f.CgroupReadOnly && !f.Root:
		return Finding{"cgroups", Warn, version + "; whether they can be written was not checked; run muster doctor as root"}
	case f.CgroupReadOnly && !f.Systemd:
		return Finding{"cgroups", Fail, version + ", mounted read-only; mount -o remount,rw /sys/fs/cgroup, or run the agent outside of this container"}
	}
	return Finding{"cgroups", OK, version + " with cpu, memory and pids"}
}

func (f Facts) overlay() Finding {
	if err := f.lack(nspawn.NeedOverlay); err != nil {
		if !f.Root {
			return Finding{"overlay", Warn, "the kernel has no overlayfs now; whether root can load it was not checked; modprobe overlay"}
		}
		return told("overlay", Fail, err)
	}
	return Finding{"overlay", OK, "the kernel has overlayfs"}
}

func (f Facts) nspawn() Finding {
	if err := f.lack(nspawn.NeedNspawn); err != nil {
		return told("systemd-nspawn", Fail, err)
	}
	if f.NspawnVersion == "" {
		return Finding{"systemd-nspawn", Warn, "it does not say its version; look what systemd-nspawn --version says"}
	}
	return Finding{"systemd-nspawn", OK, f.NspawnVersion}
}

func (f Facts) nftables() Finding {
	if !f.Nft {
		return Finding{"nftables", Warn, "nft is not in PATH; instances run, but the packet filter between them cannot be looked at; apt-get install nftables"}
	}
	return Finding{"nftables", OK, "nft is there"}
}

func (f Facts) images() Finding {
	switch {
	case f.ImagesErr != nil && !f.Root:
		return told("images", Warn, fmt.Errorf("not checked, it needs root: %w", f.ImagesErr))
	case f.ImagesErr != nil:
		return told("images", Fail, f.ImagesErr)
	case len(f.Images) > 0:
		return Finding{"images", OK, strings.Join(f.Images, ", ")}
	case f.BusyboxErr != nil:
		return told("images", Warn, fmt.Errorf("none yet, and none can be made here: %w", f.BusyboxErr))
	}
	return Finding{"images", Warn, "none yet; muster image build-minimal makes one"}
}

func (f Facts) stateDir() Finding {
	const check = "state directory"
	d := f.StateDir
	switch err := f.lack(nspawn.NeedStateDir); {
	case err != nil:
		return told(check, Fail, err)
	case d.Err != nil && !f.Root:
		return told(check, Warn, fmt.Errorf("not checked, it needs root: %w", d.Err))
	case d.Err != nil:
		return Finding{check, Fail, d.Err.Error() + "; let root make and write it, or give another --state-dir"}
	case d.OnOverlay:
		return Finding{check, Fail, d.Path + " is on an overlay file system, on which none can be laid for instances; give a --state-dir on a disk"}
	}
	return Finding{check, OK, d.Path}
}

func (f Facts) disk() Finding {
	d := f.StateDir
	free := fmt.Sprintf("%d MiB are free at %s", d.FreeMB, d.Path)
	switch {
	case d.FreeMB < 0:
		return Finding{"disk", Warn, "not checked: " + d.Path + " does not say how much is free; look with df"}
	case d.FreeMB < leastFree:
		return Finding{"disk", Fail, free + "; free some space there, or give another --state-dir"}
	case d.FreeMB < littleFree:
		return Finding{"disk", Warn, free + "; free some space there: instances can fill it"}
	case d.FreeNodes >= 0 && d.FreeNodes < littleInodes:
		return Finding{"disk", Warn, fmt.Sprintf("%s, but only %d more files can be made; remove files there", free, d.FreeNodes)}
	}
	return Finding{"disk", OK, free}
}

func (f Facts) diskLimits() Finding {
	switch {
	case f.DiskLimitErr != nil && !f.Root:
		return Finding{"disk limits", Warn, "not checked, it needs root; run muster doctor as root"}
	case f.DiskLimitErr != nil: // only what asks for a limit is refused
		return told("disk limits", Warn, f.DiskLimitErr)
	}
	return Finding{"disk limits", OK, "instances can be given a limit of their own disk"}
}

func (f Facts) port() Finding {
	p := f.Listen
	switch {
	case p.Agent != "":
		return Finding{"port", OK, fmt.Sprintf("the agent of node %s listens on %s already", p.Agent, p.Address)}
	case p.Err != nil:
		return Finding{"port", Fail, fmt.Sprintf("%s cannot be listened on: %v; stop what uses it, or give the agent another with --listen", p.Address, p.Err)}
	case p.Loopback && !f.Server.Local && !f.Server.Unnamed:
		return Finding{"port", Warn, p.Address + " is free, but the server is elsewhere and cannot reach it, so that launches wait for the next beat; give the agent this machine's address with --listen"}
	}
	return Finding{"port", OK, p.Address + " is free"}
}

func (f Facts) network() Finding {
	n := f.Network
	switch {
	case n.Err == nil:
		return Finding{"network", OK, "no route of this machine is in " + n.Prefix}
	case n.Whole: // routes to the parts of other nodes are good, and this node's part is not known yet
		return told("network", Warn, fmt.Errorf("%w; each node gets a part of it, and this one's is not known yet", n.Err))
	case f.Listen.Agent != "": // which may have another state directory than the one that is looked at
		return told("network", Warn, fmt.Errorf("%w; if that is the agent's of node %s, which runs here, examine it with its --state-dir", n.Err, f.Listen.Agent))
	}
	return told("network", Fail, n.Err)
}

func (f Facts) names() Finding {
	n := f.Names
	switch {
	case n.Err != nil:
		return told("names", Fail, n.Err)
	case n.Left:
		return Finding{"names", OK, "instances ask who their images say"}
	case len(n.Servers) == 0:
		return Finding{"names", Warn, "no name server of this machine can be reached from instances: they are on loopback, or have IPv6 addresses; give the agent a file that names others with --resolv-conf"}
	}
	return Finding{"names", OK, "instances ask " + strings.Join(n.Servers, ", ")}
}

func (f Facts) server(version string) Finding {
	s := f.Server
	switch {
	case s.Unnamed:
		return Finding{"server", Warn, "not looked at: none runs here, and none was named; give --server, as the agent will have it, or look again once it has joined"}
	case s.Err != nil:
		return told("server", Fail, s.Err)
	case s.Refused:
		return Finding{"server", OK, s.URL + " answers; its version is for who has a key"}
	case s.Version != version:
		return Finding{"server", Warn, fmt.Sprintf("%s has version %s, this is %s; install the same version on both", s.URL, s.Version, version)}
	}
	return Finding{"server", OK, fmt.Sprintf("%s answers, version %s", s.URL, s.Version)}
}

func (f Facts) clock() Finding {
	c := f.Server.Clock
	if f.Server.Unnamed {
		return Finding{"clock", Warn, "not checked: no server was looked at"}
	}
	if c == nil {
		return Finding{"clock", Warn, "not checked: the server did not tell its time; look again once the server can be reached"}
	}
	apart, where := c.Abs().Round(time.Second), "ahead of"
	if *c < 0 {
		where = "behind"
	}
	if c.Abs() > clockApart {
		return Finding{"clock", Warn, fmt.Sprintf("this machine's is %s %s the server's; times in lists and logs will not fit together; set both by NTP: timedatectl set-ntp true", apart, where)}
	}
	return Finding{"clock", OK, "this machine's is that of the server"}
}

// told is a finding of an error, which says what to do.
func told(check string, level Level, err error) Finding {
	return Finding{check, level, strings.ReplaceAll(err.Error(), "\n", "; ")}
}
