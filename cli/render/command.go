package render

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxOutput is how much is kept of what a command prints, in bytes: the end.
	maxOutput = 8 << 10
	// outputPatience is how long what a command left running may hold its output open.
	outputPatience = time.Second
	// fileVariable has the path of the new text.
	fileVariable = "MUSTER_RENDER_FILE"
)

// command is one that a target runs.
type command struct {
	argv    []string
	file    string // the value of fileVariable
	timeout time.Duration
	mounts  bool // in a mount namespace of its own
}

// shell runs a line by /bin/sh.
func shell(line, file string, timeout time.Duration) command {
	return command{argv: []string{"/bin/sh", "-c", line}, file: file, timeout: timeout}
}

// run runs a command and returns the end of what it printed. At the end of ctx, or of its
// time, it is killed with all that it started.
func (c command) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Env = append(environment(), fileVariable+"="+c.file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.mounts {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = outputPatience
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // it succeeded, and left something running
		err = nil
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil:
		err = fmt.Errorf("it took longer than %s and was killed", c.timeout)
	case ctx.Err() != nil && err != nil:
		err = fmt.Errorf("it was interrupted: %w", ctx.Err())
	}
	return out.String(), err
}

// environment is that of this process without what is muster's, such as its access key.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MUSTER_") })
}

// quoted writes text as one word of /bin/sh.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	if len(t.text) > 2*maxOutput {
		t.text = slices.Clone(t.text[len(t.text)-maxOutput:])
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.TrimSpace(string(t.text[max(0, len(t.text)-maxOutput):]))
}
