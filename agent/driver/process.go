package driver

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
)

// Processes is the optional ability to run processes in machines, beside their
// payloads. A process is in its machine's namespaces and limits, has no privilege
// that the machine's process 1 lacks, and ends with its machine. It outlives the
// agent: a new Driver lists and controls what an earlier one started.
//
// Only the first process of a command counts: when that ends, what it has left
// behind is killed. All methods are safe for concurrent use.
type Processes interface {
	// StartProcess starts a process and returns when it runs, or has ended already. One that cannot be started is Exited
	// with the reason, and no error. A process of that name that has Exited is replaced, and its log goes on; one that runs is
	// ErrExists. ErrNotFound: there is no such machine; CONFLICT: it does not run. What ctx ends may run all the same.
	StartProcess(ctx context.Context, spec ProcessSpec) (ProcessStatus, error)
	// StopProcess sends the process and its group a signal, and after grace kills all that it has started. It returns once
	// it has Exited. ErrNotFound: there is none of that name.
	StopProcess(ctx context.Context, ref ProcessRef, stop Stop) (ProcessStatus, error)
	// RemoveProcess kills a process if need be and deletes its status and log. One that is not there is no error.
	RemoveProcess(ctx context.Context, ref ProcessRef) error
	// ListProcesses returns every process, sorted by machine and name. Those of a machine are there until that is removed.
	ListProcesses(ctx context.Context) ([]ProcessStatus, error)
	// WatchProcesses sends a process whenever its state may have changed by itself; it may repeat. The channel is closed
	// when ctx ends.
	WatchProcesses(ctx context.Context) <-chan ProcessRef
}

// ProcessLogs is the optional ability to read what processes have written to
// their standard output and error. What is kept, and where a place is, is as in Logs;
// a log goes on when a process is started again.
type ProcessLogs interface {
	// ReadProcessLog is ReadLog for a process.
	ReadProcessLog(ctx context.Context, ref ProcessRef, r LogRead) (LogPart, error)
}

// ProcessRef names a process.
type ProcessRef struct {
	Machine string `json:"machine"`
	Name    string `json:"name"` // unique in the machine, as muster.CheckName takes it; such as svc-1
}

// String writes the reference for people.
func (r ProcessRef) String() string { return r.Machine + "/" + r.Name }

// ProcessSpec is what to start.
type ProcessSpec struct {
	ProcessRef
	Command []string          `json:"command"` // the first word is looked for in PATH when it has no slash
	Env     map[string]string `json:"-"`       // secrets: written down nowhere; PATH, HOME, USER and LOGNAME have defaults
	User    string            `json:"user"`    // NAME, UID, or either with :GROUP, of the machine's; empty: nobody, 65534
	Dir     string            `json:"dir"`     // absolute, in the machine; empty: /
	Port    int               `json:"port"`    // of TCP; when somebody in the machine listens at it, it could not start; 0: none
	Note    string            `json:"note"`    // kept beside it and given back: what the caller has to remember of it
}

// Validate refuses a specification that no driver could start, with an INVALID
// error that names the field.
func (s *ProcessSpec) Validate() error {
	if err := muster.CheckName("name", s.Name); err != nil {
		return err
	}
	return checkProgram(program{s.Command, s.Env, s.User, s.Dir})
}

// program is what all that runs in a machine has in common.
type program struct {
	command []string
	env     map[string]string
	user    string
	dir     string
}

func checkProgram(p program) error {
	if len(p.command) == 0 || p.command[0] == "" {
		return muster.InvalidField("command", "it is empty; give the program to run, and its arguments")
	}
	words := Spec{Command: p.command, Env: p.env}
	if err := words.validateText(); err != nil {
		return err
	}
	if strings.ContainsAny(p.user, "\x00\n/ ") {
		return muster.InvalidField("user", "%.80q is no user; give a name or a number, with :GROUP if need be", p.user)
	}
	if strings.ContainsRune(p.dir, 0) || p.dir != "" && !path.IsAbs(p.dir) {
		return muster.InvalidField("dir", "%.80q is no absolute path", p.dir)
	}
	return nil
}

// ProcessStatus is a process as it is.
type ProcessStatus struct {
	Spec     ProcessSpec `json:"spec"`     // without Env
	State    State       `json:"state"`    // Preparing while it is being started
	PID      int         `json:"pid"`      // on the host while it runs
	ExitCode *int        `json:"exitCode"` // nil when unknown or killed by a signal
	Reason   string      `json:"reason"`   // why it ended or could not start
	OOM      bool        `json:"oom"`      // the kernel killed for memory in it
	Cause    Cause       `json:"cause"`    // of its end
	Output   string      `json:"output"`   // once Exited: the end of its log, at most OutputLimit bytes of valid UTF-8
	Started  time.Time   `json:"started"`
	Ended    time.Time   `json:"ended"`
}

// Cause is on whose account a process ended.
type Cause string

// The causes of an end.
const (
	Itself  Cause = ""        // it ended, was killed by whom ever, or could not start
	Stopped Cause = "STOPPED" // by StopProcess
	Machine Cause = "MACHINE" // its machine ended, or the host was restarted
)

// Stop says how to stop a process. The zero value kills at once what does not
// end on SIGTERM at once.
type Stop struct {
	Signal string        // its name, such as TERM or SIGINT; empty: TERM
	Grace  time.Duration // until all is killed
}

// Exec is the optional ability to run a command in a machine for as long as
// somebody waits for it: it ends with the call, and with the agent.
type Exec interface {
	// Exec runs a command as a process of the machine's, like StartProcess, and returns how it ended. It has killed by then
	// all that the command had started, also when ctx ends, whose error it then returns. A command that cannot be started is
	// no error but has a Failure.
	Exec(ctx context.Context, spec ExecSpec, streams Streams) (Exit, error)
}

// ExecSpec is a command to run in a machine.
type ExecSpec struct {
	Machine string
	Command []string
	Env     map[string]string
	User    string  // as in ProcessSpec
	Dir     string  // as in ProcessSpec
	Window  *Window // not nil: it has a terminal of that size, and Streams.Stdout gets what appears on it
}

// Validate refuses what no driver could run, with an INVALID error that names
// the field.
func (s *ExecSpec) Validate() error {
	return checkProgram(program{s.Command, s.Env, s.User, s.Dir})
}

// Window is the size of a terminal.
type Window struct{ Rows, Columns uint16 }

// Streams are where a command's input comes from and its output goes to. Nil: no
// input; output that is dropped.
type Streams struct {
	Stdin  io.Reader     // closed when the command ends if it is an io.Closer, which has to end a Read that waits
	Stdout io.Writer     // its error ends the command
	Stderr io.Writer     // likewise
	Resize <-chan Window // of the terminal, if there is one
}

// Exit is how a command ended.
type Exit struct {
	// Code is its status, and as shells have it 128 and the signal's number when one ended it,
	// 127 when there is no such program, 126 when it could not be started otherwise.
	Code    int
	Signal  int    // that ended it; 0: none
	Failure string // why it could not be started; empty: it was
}

// String says it in words.
func (e Exit) String() string {
	switch {
	case e.Failure != "":
		return "could not start: " + e.Failure
	case e.Signal != 0:
		return fmt.Sprintf("killed by signal %d", e.Signal)
	}
	return fmt.Sprintf("exited with status %d", e.Code)
}
