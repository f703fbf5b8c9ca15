package nspawn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/driver"
)

// Exec implements driver.Exec.
func (d *Driver) Exec(ctx context.Context, spec driver.ExecSpec, streams driver.Streams) (driver.Exit, error) {
	if err := spec.Validate(); err != nil {
		return driver.Exit{}, err
	}
	r, p, err := d.runningMachine(ctx, spec.Machine)
	if err != nil {
		return driver.Exit{}, err
	}
	o := execOrder{
		order:  order{Command: spec.Command, Env: spec.Env, User: spec.User, Dir: spec.Dir},
		Leader: p.Leader,
		Group:  r.Group.Below("exec-" + rand.Text()),
		Window: spec.Window,
	}
	if spec.Window != nil { // programs on a terminal ask which
		o.Env = map[string]string{"TERM": "xterm"}
		maps.Copy(o.Env, spec.Env)
	}
	return d.execute(ctx, o, streams)
}

// execute starts the command's supervisor and serves it until that has ended, when nothing of the command is left.
func (d *Driver) execute(ctx context.Context, o execOrder, streams driver.Streams) (driver.Exit, error) {
	cmd, sealed, err := d.shimCommand(verbExec, "-")
	if err != nil {
		return driver.Exit{}, err
	}
	defer sealed.Close()
	pumps := newPumps(streams)
	defer pumps.closeTheirs()
	if cmd.Stdin, cmd.Stdout, cmd.Stderr, err = pumps.open(o.Window != nil); err != nil {
		return driver.Exit{}, errors.Join(err, pumps.wait())
	}
	given, err := handOver(o)
	if err != nil {
		return driver.Exit{}, errors.Join(err, pumps.wait())
	}
	defer given.Close()
	control, theirs, err := controlPair()
	if err != nil {
		return driver.Exit{}, errors.Join(err, pumps.wait())
	}
	defer control.Close()
	cmd.ExtraFiles = []*os.File{given, theirs}
	err = errors.Join(cmd.Start(), theirs.Close())
	pumps.closeTheirs()
	if err != nil {
		return driver.Exit{}, errors.Join(fmt.Errorf("start the supervisor of a command: %w", err), pumps.wait())
	}
	hangUp := func() { _ = control.Close() } // and the supervisor kills the command
	stop := context.AfterFunc(ctx, hangUp)
	defer stop()
	pumps.start(hangUp)
	exit, err := pumps.follow(control)
	ended := cmd.Wait()
	if err != nil { // nothing is left, unless the supervisor was killed
		ended = errors.Join(ended, o.Group.Kill(), o.Group.Remove())
	}
	failed := pumps.wait()
	switch {
	case ctx.Err() != nil:
		return driver.Exit{}, ctx.Err()
	case failed != nil:
		return driver.Exit{}, failed
	case err != nil && !o.Leader.stays(): // the supervisor was in the group just then
		return exitOf(syscall.WaitStatus(unix.SIGKILL)), nil
	case err != nil:
		return driver.Exit{}, errors.Join(err, ended)
	}
	return exit, nil
}

// follow returns how the command ended, which is told on the socket. A terminal comes over it too.
func (p *pumps) follow(control *net.UnixConn) (driver.Exit, error) {
	text, rights := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	for {
		n, with, _, _, err := control.ReadMsgUnix(text, rights)
		if err != nil || n == 0 {
			return driver.Exit{}, errors.Join(errors.New("the command's supervisor was killed"), err)
		}
		terminal, err := received(rights[:with])
		if err != nil {
			return driver.Exit{}, err
		}
		if terminal != nil {
			p.serveTerminal(terminal)
		}
		var news execNews
		if err := json.Unmarshal(text[:n], &news); err != nil {
			return driver.Exit{}, fmt.Errorf("what the command's supervisor tells: %w", err)
		}
		if news.Exit != nil {
			return *news.Exit, nil
		}
	}
}

// received returns the file that came with a message, nil when none did.
func received(rights []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	unix.CloseOnExec(fds[0])
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}

// controlPair returns both ends of a socket that keeps messages apart.
func controlPair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control")
	defer ours.Close() // the connection has a copy
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil //nolint:forcetypeassert // of a unix socket
}
