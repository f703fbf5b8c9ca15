package nspawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/failpoint"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// machine is a machine's place in the state directory.
type machine struct {
	state, name string
	reached     failpoint.Hook
}

// at tells that a step has been taken.
func (m machine) at(step failpoint.Step) { m.reached.Reached(step, m.name) }

func (m machine) dir() string          { return filepath.Join(m.state, "machines", m.name) }
func (m machine) path(n string) string { return filepath.Join(m.dir(), n) }
func (m machine) lockPath() string     { return filepath.Join(m.state, "locks", m.name) }

// machineAt returns the machine of a directory that machine.dir returned.
func machineAt(dir string) machine {
	dir = filepath.Clean(dir)
	return machine{state: filepath.Dir(filepath.Dir(dir)), name: filepath.Base(dir)}
}

// record is what a launch writes down before anything runs.
type record struct {
	Spec         driver.Spec   `json:"spec"`
	Root         string        `json:"root"` // the image's
	Boot         bool          `json:"boot"` // by the image's systemd
	Command      []string      `json:"command"`
	Disk         string        `json:"disk"`        // directory
	Binds        []bind        `json:"binds"`       // what it sees of the host
	Unit         string        `json:"unit"`        // systemd's that it runs in; empty: launched directly
	Register     bool          `json:"register"`    // with systemd-machined
	Group        cgroup.Group  `json:"group"`       // of the payload; a unit's supervisor is in it too
	Supervisors  cgroup.Group  `json:"supervisors"` // of the supervisors; none in a unit
	Limits       cgroup.Limits `json:"limits"`
	StartTimeout time.Duration `json:"startTimeout"`
	ResolvConf   string        `json:"resolvConf,omitempty"` // its /etc/resolv.conf; empty: the image's
	HostBoot     string        `json:"hostBoot"`             // the kernel's boot id
	Cuts         int           `json:"cuts"`                 // how often in a row its launch was cut off before this one
}

// progress is what the supervisor writes down while the machine lives.
type progress struct {
	Supervisor process   `json:"supervisor"`
	Nspawn     process   `json:"nspawn"`
	Leader     process   `json:"leader"`  // the machine's process 1
	Payload    process   `json:"payload"` // its first child; none when booted
	Running    bool      `json:"running"`
	Started    time.Time `json:"started"`
}

// ending is how the payload ended.
type ending struct {
	Code   *int      `json:"code"`
	Reason string    `json:"reason"`
	OOM    bool      `json:"oom"`
	Cut    bool      `json:"cut"` // the launch was cut off, and may be tried again
	Ended  time.Time `json:"ended"`
}

func (m machine) record() (r record, err error)     { return r, m.read("machine.json", &r) }
func (m machine) progress() (p progress, err error) { return p, m.read("state.json", &p) }
func (m machine) ending() (e ending, err error)     { return e, m.read("exit.json", &e) }
func (m machine) setEnding(e ending) error          { return m.write("exit.json", e) }
func (m machine) stopping() bool                    { return exists(m.path("stopping")) }
func (m machine) released() bool                    { return exists(m.path("released")) }
func (m machine) setReleased() error                { return os.WriteFile(m.path("released"), nil, 0o600) }

func (m machine) setStopping() error { return os.WriteFile(m.path("stopping"), nil, 0o600) }

// supervisorLog opens the file of what the supervisor complains about.
func (m machine) supervisorLog() (*os.File, error) {
	return os.OpenFile(m.path("supervisor.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

func (m machine) read(name string, into any) error {
	text, err := os.ReadFile(m.path(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", m.path(name), err)
	}
	return nil
}

// write replaces a file as a whole, durably. It has secrets: it is for root only.
func (m machine) write(name string, from any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return renameio.WriteFile(m.path(name), text, 0o600)
}

// setProgress replaces state.json as a whole, but not durably: what it says ends with the host's power.
func (m machine) setProgress(p progress) error { return m.replace("state.json", p) }

// replace replaces a file as a whole, but not durably.
func (m machine) replace(name string, from any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.path(name+".new"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(m.path(name+".new"), m.path(name))
}

// tryLock takes the machine's lock, nil when somebody has it. The lock is the open file's: it is
// free once all copies of that, also those in other processes, are closed.
func (m machine) tryLock() (*os.File, error) {
	if held, err := m.held(); err != nil || held { // not to wake Watch
		return nil, err
	}
	f, err := os.OpenFile(m.lockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock %s: %w", m.lockPath(), err)
}

// held reports whether somebody has the lock. It opens for reading, since Watch takes the
// closing of a writer for an end.
func (m machine) held() (bool, error) {
	f, err := os.Open(m.lockPath())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	probe := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &probe)
	return probe.Type != unix.F_UNLCK, err
}

// hostBoot returns the kernel's id of this boot.
func hostBoot() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
