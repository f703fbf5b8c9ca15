package nspawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// verbExec runs a command for as long as the agent wants it. Its standard descriptors are the command's.
const verbExec = "exec"

// controlFD is the socket to the agent: what is said on it, and when it ends.
const controlFD = 4

// execOrder is a command and where to run it.
type execOrder struct {
	order
	Leader process        `json:"leader"`
	Group  cgroup.Group   `json:"group"`
	Window *driver.Window `json:"window"`
}

// execNews is what the agent is told: that the command runs, with the terminal beside it if it has one; then how it ended.
type execNews struct {
	Running bool         `json:"running"`
	Exit    *driver.Exit `json:"exit"`
}

// execute runs one command in a machine and kills it with all that it has started when the agent goes away.
func execute(string) error {
	given := os.NewFile(orderFD, "order")
	var o execOrder
	if err := errors.Join(json.NewDecoder(given).Decode(&o), given.Close()); err != nil {
		return err
	}
	unix.CloseOnExec(controlFD)
	control := os.NewFile(controlFD, "control")
	defer control.Close()
	swallowed := make(chan os.Signal, 1)
	signal.Notify(swallowed, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)

	here, err := cgroup.Here() // with the agent, since it ends with that
	if err != nil {
		return err
	}
	var terminal *os.File
	cmd, err := o.start(o.Leader, o.Group, here, func() (_ *exec.Cmd, err error) {
		cmd := &exec.Cmd{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
		if o.Window != nil {
			terminal, err = giveTerminal(cmd, *o.Window)
		}
		return cmd, err
	})
	if o.Window != nil && cmd != nil && cmd.Stdin != os.Stdin {
		cmd.Stdin.(*os.File).Close() //nolint:forcetypeassert // giveTerminal has set it
	}
	var exit driver.Exit
	if err == nil {
		// Else an output of the command would not end before this process does.
		for fd := range 3 {
			_ = unix.Close(fd)
		}
		exit, err = watchOver(cmd, control, terminal, o.Group)
	} else {
		exit, err = notStarted(err), nil
	}
	return errors.Join(err, o.Group.Kill(), o.Group.Remove(), tell(control, execNews{Exit: &exit}, nil))
}

// notStarted is how a command ended that could not be started, with the status that shells have for it.
func notStarted(err error) driver.Exit {
	exit := driver.Exit{Code: 126, Failure: muster.Printable(err.Error(), muster.MaxReasonBytes)}
	if errors.Is(err, fs.ErrNotExist) {
		exit.Code = 127
	}
	return exit
}

// watchOver tells the agent that the command runs and waits until that has ended, or kills it when the agent has gone.
func watchOver(cmd *exec.Cmd, control, terminal *os.File, group cgroup.Group) (driver.Exit, error) {
	err := tell(control, execNews{Running: true}, terminal)
	if terminal != nil {
		err = errors.Join(err, terminal.Close()) // the agent's
	}
	if err != nil {
		return driver.Exit{}, errors.Join(err, group.Kill())
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		_, _ = unix.Read(int(control.Fd()), make([]byte, 1)) // it says nothing: this is its end
		_ = group.Kill()
	})
	_ = cmd.Wait() // its status is read from ProcessState
	_ = unix.Shutdown(int(control.Fd()), unix.SHUT_RD)
	listening.Wait()
	return exitOf(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
}

func exitOf(status syscall.WaitStatus) driver.Exit {
	if status.Signaled() {
		return driver.Exit{Code: 128 + int(status.Signal()), Signal: int(status.Signal())}
	}
	return driver.Exit{Code: status.ExitStatus()}
}

// tell sends a message, with a file if there is one.
func tell(control *os.File, news execNews, with *os.File) error {
	text, err := json.Marshal(news)
	if err != nil {
		return err
	}
	var rights []byte
	if with != nil {
		rights = unix.UnixRights(int(with.Fd()))
	}
	if err := unix.Sendmsg(int(control.Fd()), text, rights, nil, unix.MSG_NOSIGNAL); err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("tell the agent: %w", err)
	}
	return nil
}

// giveTerminal makes a terminal of the machine's, which the thread is in, for a command, and returns its other end.
func giveTerminal(cmd *exec.Cmd, size driver.Window) (*os.File, error) {
	fd, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a terminal in the instance: %w", err)
	}
	main := os.NewFile(uintptr(fd), "terminal")
	var kind unix.Statfs_t
	if err := unix.Fstatfs(fd, &kind); err != nil || kind.Type != unix.DEVPTS_SUPER_MAGIC {
		return nil, errors.Join(errors.New("open a terminal in the instance: its /dev/pts has none"), err, main.Close())
	}
	if err := errors.Join(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), resize(fd, size)); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a terminal in the instance: %w", err), main.Close())
	}
	// By the descriptor, not by a path that the machine could have put something else at.
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, errors.Join(fmt.Errorf("open a terminal in the instance: %w", errno), main.Close())
	}
	tty := os.NewFile(peer, "tty")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setctty: true}
	return main, nil
}

func resize(fd int, size driver.Window) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
}
