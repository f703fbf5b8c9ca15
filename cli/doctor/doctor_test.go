package doctor_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/agent/nspawn"
	"github.com/muster-cloud/muster/cli/doctor"
)

// well are the facts of a machine where all is well.
func well() doctor.Facts {
	skew := 300 * time.Millisecond
	return doctor.Facts{
		Root: true, CgroupV2: true, NspawnVersion: "systemd 252", Nft: true, Images: []string{"minimal"},
		StateDir: doctor.Directory{Path: "/var/lib/muster", FreeMB: 5000, FreeNodes: 100_000},
		Listen:   doctor.Port{Address: "127.0.0.1:8080", Loopback: true},
		Network:  doctor.Network{Prefix: "10.213.0.0/16", Whole: true},
		Names:    doctor.Names{Servers: []string{"192.0.2.53"}},
		Server:   doctor.Server{URL: "http://127.0.0.1:9000", Local: true, Version: "1", Clock: &skew},
	}
}

func TestExamine_FindsAWellMachineOK(t *testing.T) {
	findings := doctor.Examine(well(), "1")
	for _, f := range findings {
		if f.Level != doctor.OK {
			t.Errorf("%s is %s: %s", f.Check, f.Level, f.Text)
		}
	}
	if len(findings) != 15 || doctor.Failed(findings) {
		t.Errorf("there are %d findings: %v", len(findings), findings)
	}
}

func lack(need nspawn.Need, text string) func(*doctor.Facts) {
	return func(f *doctor.Facts) { f.Lacks = append(f.Lacks, nspawn.Lack{Need: need, Err: errors.New(text)}) }
}

func both(first, second func(*doctor.Facts)) func(*doctor.Facts) {
	return func(f *doctor.Facts) { first(f); second(f) }
}

func TestExamine_SaysWhatToDo(t *testing.T) {
	wrong := errors.New("it is wrong; mend it")
	noRoot := func(f *doctor.Facts) { f.Root = false }
	clock := func(d time.Duration) func(*doctor.Facts) {
		return func(f *doctor.Facts) { f.Server.Clock = &d }
	}
	for _, test := range []struct {
		name  string
		spoil func(*doctor.Facts)
		check string
		level doctor.Level
		text  string
	}{
		{"no root", noRoot, "root", doctor.Warn, "run muster doctor as root"},
		{"no launcher", lack(nspawn.NeedLauncher, "no bus; start it"), "launcher", doctor.Fail, "no bus; start it"},
		{"launcher without root", both(noRoot, lack(nspawn.NeedLauncher, "denied")), "launcher", doctor.Warn, "not checked, it needs root: denied"},
		{"systemd", func(f *doctor.Facts) { f.Systemd = true }, "launcher", doctor.OK, "instances become its units"},
		{"no cgroups", func(f *doctor.Facts) { f.CgroupErr = wrong }, "cgroups", doctor.Fail, "it is wrong; mend it"},
		{"no cgroups for this process, but systemd", func(f *doctor.Facts) { f.CgroupErr, f.Systemd = wrong, true }, "cgroups", doctor.OK, "systemd sets the limits"},
		{"read-only cgroups", func(f *doctor.Facts) { f.CgroupReadOnly = true }, "cgroups", doctor.Fail, "remount,rw"},
		{"cgroups without root", both(noRoot, func(f *doctor.Facts) { f.CgroupReadOnly = true }), "cgroups", doctor.Warn, "run muster doctor as root"},
		{"old cgroups", func(f *doctor.Facts) { f.CgroupV2 = false }, "cgroups", doctor.OK, "v1 with cpu, memory and pids"},
		{"no overlay", lack(nspawn.NeedOverlay, "none: modprobe overlay\nexit status 1"), "overlay", doctor.Fail, "none: modprobe overlay; exit status 1"},
		{"overlay without root", both(noRoot, lack(nspawn.NeedOverlay, "none")), "overlay", doctor.Warn, "modprobe overlay"},
		{"no nspawn", lack(nspawn.NeedNspawn, "not in PATH: apt-get install systemd-container"), "systemd-nspawn", doctor.Fail, "apt-get install systemd-container"},
		{"silent nspawn", func(f *doctor.Facts) { f.NspawnVersion = "" }, "systemd-nspawn", doctor.Warn, "systemd-nspawn --version"},
		{"no nft", func(f *doctor.Facts) { f.Nft = false }, "nftables", doctor.Warn, "apt-get install nftables"},
		{"no image", func(f *doctor.Facts) { f.Images = nil }, "images", doctor.Warn, "muster image build-minimal"},
		{"no image and no busybox", func(f *doctor.Facts) { f.Images, f.BusyboxErr = nil, wrong }, "images", doctor.Warn, "none can be made here: it is wrong; mend it"},
		{"no busybox, but an image", func(f *doctor.Facts) { f.BusyboxErr = wrong }, "images", doctor.OK, "minimal"},
		{"damaged images", func(f *doctor.Facts) { f.ImagesErr = wrong }, "images", doctor.Fail, "mend it"},
		{"images without root", both(noRoot, func(f *doctor.Facts) { f.ImagesErr = wrong }), "images", doctor.Warn, "it needs root"},
		{"odd state directory", lack(nspawn.NeedStateDir, "a:b cannot be mounted on"), "state directory", doctor.Fail, "cannot be mounted on"},
		{"state directory that is a file", func(f *doctor.Facts) { f.StateDir.Err = wrong }, "state directory", doctor.Fail, "another --state-dir"},
		{"state directory without root", both(noRoot, func(f *doctor.Facts) { f.StateDir.Err = wrong }), "state directory", doctor.Warn, "it needs root"},
		{"state directory on an overlay", func(f *doctor.Facts) { f.StateDir.OnOverlay = true }, "state directory", doctor.Fail, "on a disk"},
		{"full disk", func(f *doctor.Facts) { f.StateDir.FreeMB = 100 }, "disk", doctor.Fail, "100 MiB are free at /var/lib/muster; free some space"},
		{"nearly full disk", func(f *doctor.Facts) { f.StateDir.FreeMB = 1000 }, "disk", doctor.Warn, "free some space"},
		{"no more files", func(f *doctor.Facts) { f.StateDir.FreeNodes = 10 }, "disk", doctor.Warn, "only 10 more files"},
		{"files without limit", func(f *doctor.Facts) { f.StateDir.FreeNodes = -1 }, "disk", doctor.OK, "5000 MiB"},
		{"disk that does not tell", func(f *doctor.Facts) { f.StateDir.FreeMB = -1 }, "disk", doctor.Warn, "not checked"},
		{"port in use", func(f *doctor.Facts) { f.Listen.Err = errors.New("it is in use") }, "port", doctor.Fail, "--listen"},
		{"port of the agent", func(f *doctor.Facts) { f.Listen.Err, f.Listen.Agent = wrong, "n1" }, "port", doctor.OK, "the agent of node n1"},
		{"loopback and a server elsewhere", func(f *doctor.Facts) { f.Server.Local = false }, "port", doctor.Warn, "--listen"},
		{"a route in the cluster's network", func(f *doctor.Facts) { f.Network.Err = wrong }, "network", doctor.Warn, "not known yet"},
		{"a route in the node's network", func(f *doctor.Facts) { f.Network = doctor.Network{Err: wrong} }, "network", doctor.Fail, "it is wrong; mend it"},
		{"a route of the agent that runs", func(f *doctor.Facts) {
			f.Network, f.Listen = doctor.Network{Err: wrong}, doctor.Port{Agent: "n1"}
		}, "network", doctor.Warn, "examine it with its --state-dir"},
		{"names", func(*doctor.Facts) {}, "names", doctor.OK, "instances ask 192.0.2.53"},
		{"no name server that is reached", func(f *doctor.Facts) { f.Names = doctor.Names{} }, "names", doctor.Warn, "--resolv-conf"},
		{"names that are the images' affair", func(f *doctor.Facts) { f.Names = doctor.Names{Left: true} }, "names", doctor.OK, "their images"},
		{"a file of name servers that is not there", func(f *doctor.Facts) { f.Names = doctor.Names{Err: wrong} }, "names", doctor.Fail, "mend it"},
		{"no server", func(f *doctor.Facts) {
			f.Server = doctor.Server{Err: errors.New("cannot reach it; is it running?"), Local: true}
		}, "server", doctor.Fail, "is it running?"},
		{"no server that anybody named", func(f *doctor.Facts) { f.Server = doctor.Server{Unnamed: true} }, "server", doctor.Warn, "none was named; give --server"},
		{"no clock of no server", func(f *doctor.Facts) { f.Server = doctor.Server{Unnamed: true} }, "clock", doctor.Warn, "no server was looked at"},
		{"loopback and no server", func(f *doctor.Facts) { f.Server = doctor.Server{Unnamed: true} }, "port", doctor.OK, "is free"},
		{"another version", func(f *doctor.Facts) { f.Server.Version = "2" }, "server", doctor.Warn, "has version 2, this is 1"},
		{"no loop devices", func(f *doctor.Facts) { f.DiskLimitErr = errors.New("no loop devices: modprobe loop") }, "disk limits", doctor.Warn, "modprobe loop"},
		{"loop devices for root", func(f *doctor.Facts) { f.Root, f.DiskLimitErr = false, errors.New("denied") }, "disk limits", doctor.Warn, "as root"},
		{"no clock", func(f *doctor.Facts) { f.Server.Clock = nil }, "clock", doctor.Warn, "not checked"},
		{"fast clock", clock(time.Minute), "clock", doctor.Warn, "1m0s ahead of the server's"},
		{"slow clock", clock(-time.Hour), "clock", doctor.Warn, "1h0m0s behind the server's"},
	} {
		t.Run(test.name, func(t *testing.T) {
			facts := well()
			test.spoil(&facts)
			findings := doctor.Examine(facts, "1")
			at := slices.IndexFunc(findings, func(f doctor.Finding) bool { return f.Check == test.check })
			if f := findings[at]; f.Level != test.level || !strings.Contains(f.Text, test.text) {
				t.Errorf("%s is %s: %q, want %s with %q", f.Check, f.Level, f.Text, test.level, test.text)
			}
			if doctor.Failed(findings) != (test.level == doctor.Fail) {
				t.Errorf("together it is failed or not, wrongly: %v", findings)
			}
		})
	}
}
