package nspawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// searchPath is where programs are looked for by default.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// oomScore is that of what runs in a machine: rather it than a supervisor or the agent.
const oomScore = "500"

// serviceRecord is what is written down before a process is started.
type serviceRecord struct {
	Spec     driver.ProcessSpec `json:"spec"` // without its environment
	Leader   process            `json:"leader"`
	Group    cgroup.Group       `json:"group"`
	Aside    cgroup.Group       `json:"aside"` // where its supervisor goes
	HostBoot string             `json:"hostBoot"`
}

// order is what is started in a machine. It is handed over in memory, since it has secrets.
type order struct {
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	User    string            `json:"user"`
	Dir     string            `json:"dir"`
}

// handOver puts an order where a child that is given the file can read it.
func handOver(order any) (*os.File, error) {
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("order", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hand over an order: %w", err)
	}
	f := os.NewFile(uintptr(fd), "order")
	if _, err := f.WriteAt(text, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func readOrder(f io.Reader) (o order, err error) {
	return o, json.NewDecoder(f).Decode(&o)
}

// start starts the order in a machine, in a group below the machine's, as what stdio says. The caller is in the
// group meanwhile, since a child inherits its parent's, and then moves aside.
func (o order) start(leader process, group, aside cgroup.Group, stdio func() (*exec.Cmd, error)) (*exec.Cmd, error) {
	// What the agent was started with may be open here, and is nothing for a machine.
	if err := unix.CloseRange(logFD+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("keep files from the instance: %w", err)
	}
	if err := group.Create(); err != nil {
		return nil, err
	}
	if err := group.Join(os.Getpid()); err != nil {
		return nil, err
	}
	var cmd *exec.Cmd
	err := inside(leader, func() error {
		var err error
		if cmd, err = stdio(); err != nil {
			return err
		}
		if err = o.fill(cmd); err != nil {
			return err
		}
		return plain(cmd.Start(), o.Command[0])
	})
	err = errors.Join(err, aside.Join(os.Getpid()))
	if err == nil {
		// Raising it needs no privilege. It may have ended by now.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte(oomScore), 0)
	}
	return cmd, err
}

// fill completes a command on a thread that is in the machine.
func (o order) fill(cmd *exec.Cmd) error {
	who, err := lookUp(o.User)
	if err != nil {
		return err
	}
	env := map[string]string{"PATH": searchPath, "HOME": who.home, "USER": who.name, "LOGNAME": who.name}
	maps.Copy(env, o.Env)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	if cmd.Path, err = find(o.Command[0], env["PATH"]); err != nil {
		return err
	}
	cmd.Args = o.Command
	cmd.Dir = path.Clean("/" + o.Dir)
	if info, err := os.Stat(cmd.Dir); err != nil || !info.IsDir() {
		return fmt.Errorf("there is no directory %.200q in the instance: make it there, or name another one", cmd.Dir)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if tty, ok := cmd.Stdin.(*os.File); ok && cmd.SysProcAttr.Setctty { // its user may open it again
		if err := tty.Chown(int(who.uid), -1); err != nil {
			return err
		}
	}
	cmd.SysProcAttr.Setsid = true
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: who.uid, Gid: who.gid, Groups: who.groups}
	return nil
}

// find returns where a program is, which is in PATH unless it has a slash.
func find(program, search string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	for _, dir := range filepath.SplitList(search) {
		at := path.Join("/", dir, program)
		if info, err := os.Stat(at); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return at, nil
		}
	}
	return "", &noProgram{program, search}
}

// noProgram is a program that is nowhere where programs are looked for.
type noProgram struct{ name, search string }

func (e *noProgram) Error() string {
	return fmt.Sprintf("there is no program %.200q in the instance's %s: install it, or give its whole path", e.name, e.search)
}

// Is makes it one of the files that are not there.
func (e *noProgram) Is(target error) bool { return target == fs.ErrNotExist }

// plain says an error of executing a program without the parts that are ours.
func plain(err error, program string) error {
	if failed, ok := errors.AsType[*os.PathError](err); ok {
		hint := ""
		switch {
		case errors.Is(failed.Err, unix.ENOENT):
			hint = " (or the interpreter or loader that it names)"
		case errors.Is(failed.Err, unix.EACCES):
			hint = ": is it a file, and may this user execute it?"
		case errors.Is(failed.Err, unix.ENOEXEC):
			hint = ": it is no program for this machine, or a script without #!"
		}
		return fmt.Errorf("execute %.200q: %w%s", program, failed.Err, hint)
	}
	return err
}
