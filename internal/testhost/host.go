package testhost

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// bootTimeout is much more than a host needs on a machine that is busy.
const bootTimeout = time.Minute

// Options say what a host is like.
type Options struct {
	ReadOnlyGroups bool              // systemd inside takes limits and does not enforce them; default: it does
	Binds          map[string]string // what the host sees of this machine, read-only: its path, by the path inside
}

// Host is a booted host.
type Host struct {
	Dir    string // on this machine; its var-tmp is the host's /var/tmp, on a real file system
	name   string
	o      Options
	leader int // the host's process 1
	nspawn *exec.Cmd
}

var booted atomic.Int32

// Boot boots a host, and ends it when the test does.
func Boot(t testing.TB, o Options) *Host {
	t.Helper()
	sweepDead()
	h := &Host{o: o, name: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), booted.Add(1))}
	h.Dir = filepath.Join("/var/tmp", h.name)
	t.Cleanup(func() { h.close(t) })
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	if err := h.boot(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(h.Dir, "console"))
		t.Fatalf("boot a host: %v\n%s", err, log)
	}
	return h
}

func (h *Host) boot(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(h.Dir, "var-tmp"), 0o755); err != nil {
		return err
	}
	if err := buildHost(ctx, h.root()); err != nil {
		return err
	}
	return h.up(ctx)
}

func (h *Host) root() string { return filepath.Join(h.Dir, "root") }

// up starts a host that is built and returns once systemd is up.
func (h *Host) up(ctx context.Context) error {
	socket := filepath.Join(h.Dir, "notify")
	_ = os.Remove(socket) // of an earlier boot
	notices, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer notices.Close()
	h.leader = 0
	if err := h.start(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = notices.SetReadDeadline(deadline)
	}
	return h.await(notices)
}

// start runs systemd-nspawn with the host's systemd.
func (h *Host) start() error {
	inGroup, err := script(h.Dir, "ingroup.sh")
	if err != nil {
		return err
	}
	console, err := os.Create(filepath.Join(h.Dir, "console"))
	if err != nil {
		return err
	}
	defer console.Close()
	args := []string{
		h.name, "systemd-nspawn", "--quiet", "--directory=" + h.root(), "--machine=" + h.name, "--volatile=overlay",
		"--register=no", "--keep-unit", "--private-network", "--console=pipe", "--notify-ready=yes",
		"--bind=" + filepath.Join(h.Dir, "var-tmp") + ":/var/tmp",
	}
	for inside, here := range h.o.Binds {
		args = append(args, "--bind-ro="+here+":"+inside)
	}
	if h.o.ReadOnlyGroups {
		args = append(args, "--boot")
	} else {
		args = append(args, "/init.sh")
	}
	h.nspawn = exec.Command(inGroup, args...)
	h.nspawn.Env = append(os.Environ(), "NOTIFY_SOCKET="+filepath.Join(h.Dir, "notify"))
	h.nspawn.Stdout, h.nspawn.Stderr = console, console
	return h.nspawn.Start()
}

// await returns once systemd has said that it is up.
func (h *Host) await(notices *net.UnixConn) error {
	buf := make([]byte, 4096)
	for {
		n, err := notices.Read(buf)
		if err != nil {
			return fmt.Errorf("wait for systemd: %w", err)
		}
		for line := range strings.Lines(string(buf[:n])) {
			line = strings.TrimSpace(line)
			if pid, ok := strings.CutPrefix(line, "X_NSPAWN_LEADER_PID="); ok {
				if h.leader, err = strconv.Atoi(pid); err != nil {
					return err
				}
			}
			if line == "READY=1" && h.leader != 0 {
				return nil
			}
		}
	}
}

// PID is that of the host's process 1 on this machine, such as to give its network an interface.
func (h *Host) PID() int { return h.leader }

// Command makes a command that runs inside as a transient service of its own, so that it is in the host's cgroups and
// namespaces like everything there. Options are those of systemd-run.
func (h *Host) Command(ctx context.Context, options []string, args ...string) *exec.Cmd {
	enter := []string{
		"--target=" + strconv.Itoa(h.leader), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd",
		"systemd-run", "--quiet", "--pipe", "--wait", "--collect",
	}
	return exec.CommandContext(ctx, "nsenter", append(append(append(enter, options...), "--"), args...)...)
}

// Try runs a command inside and returns what it prints.
func (h *Host) Try(ctx context.Context, args ...string) (string, error) {
	cmd := h.Command(ctx, nil, args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return out.String(), nil
}

// Run runs a command inside that has to succeed.
func (h *Host) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := h.Try(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Reboot boots the host again, with another boot id. What it had outside of /var/tmp is as at its first boot. A graceful one
// shuts systemd down first; else the power is cut.
func (h *Host) Reboot(t testing.TB, graceful bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bootTimeout)
	defer cancel()
	if graceful {
		_, _ = h.Try(ctx, "systemctl", "poweroff") // it may be cut off in its answer
		stop := context.AfterFunc(ctx, func() { killGroups(h.name) })
		_ = h.nspawn.Wait()
		if !stop() {
			t.Error("the host did not shut down in time")
		}
	} else {
		killGroups(h.name)
		_ = h.nspawn.Wait() // killed
	}
	if err := sweepGroups(h.name); err != nil {
		t.Fatal(err)
	}
	if err := h.up(ctx); err != nil {
		t.Fatalf("boot again: %v", err)
	}
}

// close ends everything inside at once.
func (h *Host) close(t testing.TB) {
	t.Helper()
	killGroups(h.name)
	if h.nspawn != nil && h.nspawn.Process != nil {
		_ = h.nspawn.Process.Kill() // it is in the groups, unless it has not come that far
		_ = h.nspawn.Wait()         // killed
	}
	if err := sweep(h.name); err != nil {
		t.Errorf("remove the host: %v", err)
	}
}
