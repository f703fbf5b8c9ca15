package main

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/agent/failpoint"
)

// gate is where the agents and supervisors of a test wait at their steps: each passes at once, but for the first
// that comes to the step that is armed.
type gate struct {
	t    *testing.T
	path string
	held chan held

	mu    sync.Mutex
	armed failpoint.Step
	seen  map[failpoint.Step]bool
}

// held is a process that waits at a step.
type held struct {
	step    failpoint.Step
	machine string
	pid     int // in this process's PID namespace, wherever it runs
	conn    net.Conn
}

// release lets the process go on, if it still lives.
func (h held) release() { _ = h.conn.Close() }

// newGate listens in a directory until the test ends.
func newGate(t *testing.T, dir string) *gate {
	t.Helper()
	g := &gate{t: t, path: filepath.Join(dir, "gate"), held: make(chan held, 1), seen: map[failpoint.Step]bool{}}
	listener, err := net.Listen("unix", g.path)
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			wait.Go(func() { g.arrived(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		wait.Wait()
	})
	return g
}

// arrived handles one process at one step.
func (g *gate) arrived(conn net.Conn) {
	line, err := bufio.NewReader(conn).ReadString('\n')
	step, machine, _ := strings.Cut(strings.TrimSpace(line), " ")
	if err != nil { // killed
		_ = conn.Close()
		return
	}
	h := held{step: failpoint.Step(step), machine: machine, pid: peer(conn), conn: conn}
	g.mu.Lock()
	g.seen[h.step] = true
	hold := g.armed == h.step
	if hold {
		g.armed = ""
	}
	g.mu.Unlock()
	if !hold {
		h.release()
		return
	}
	g.held <- h
}

// peer returns the PID of a connection's other end, 0 when it has ended.
func peer(conn net.Conn) (pid int) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if is, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(is.Pid)
		}
	})
	return pid
}

// arm has the next process wait that comes to a step.
func (g *gate) arm(step failpoint.Step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = step
}

// wait returns the process that waits at the armed step.
func (g *gate) wait(step failpoint.Step) held {
	g.t.Helper()
	select {
	case h := <-g.held:
		return h
	case <-time.After(20 * time.Second):
		g.t.Fatalf("nobody came to %s", step)
		return held{}
	}
}

// unseen returns the steps in the table that nobody came to, and those that somebody came to and that are not in it.
func (g *gate) unseen() (missing, unknown []failpoint.Step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	named := map[failpoint.Step]bool{}
	for _, step := range failpoint.Steps() {
		named[step] = true
		if !g.seen[step] {
			missing = append(missing, step)
		}
	}
	for step := range g.seen {
		if !named[step] {
			unknown = append(unknown, step)
		}
	}
	return missing, unknown
}

// supervisorOf returns the PID of a machine's supervisor, which may have to start first; 0 when there is none.
func supervisorOf(machine string) int {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, pid := range pidsOf(func(words []string) bool {
			return len(words) == 4 && words[1] == "shim" && filepath.Base(words[3]) == machine
		}) {
			return pid
		}
	}
	return 0
}

// pidsOf returns the processes whose command line is as asked for.
func pidsOf(is func(words []string) bool) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if is(strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killHard ends a process that may have ended.
func killHard(t *testing.T, pid int) {
	t.Helper()
	if pid <= 0 {
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
}
