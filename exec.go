package muster

import (
	"path"
	"strings"
)

// ExecRequest asks an agent to run a command in a machine, and to connect its streams
// to a session of the server's.
type ExecRequest struct {
	Session  string   `json:"session"` // the agent opens GET /exec/sessions/SESSION
	Machine  string   `json:"machine"`
	Command  []string `json:"command"`
	Env      Map      `json:"env"`
	User     string   `json:"user"` // empty: the instance's root
	Dir      string   `json:"dir"`  // empty: /
	Terminal bool     `json:"terminal"`
	Rows     int      `json:"rows"`
	Columns  int      `json:"columns"`
}

// maxTerminal is how many lines or columns a terminal has at most.
const maxTerminal = 4096

// Validate refuses what no agent could run.
func (in *ExecRequest) Validate() error {
	switch {
	case len(in.Command) == 0 || in.Command[0] == "":
		return InvalidField("command", "it is empty; give the program to run, and its arguments")
	case strings.ContainsAny(in.User, "\x00\n/ ") || len(in.User) > MaxNameBytes:
		return InvalidField("user", "%.80q is no user; give a name or a number, with :GROUP if need be, or leave it out for root", in.User)
	case in.Dir != "" && (!path.IsAbs(in.Dir) || strings.ContainsRune(in.Dir, 0)):
		return InvalidField("dir", "%.80q is no absolute path in the instance", in.Dir)
	case in.Rows < 0 || in.Rows > maxTerminal || in.Columns < 0 || in.Columns > maxTerminal:
		return InvalidField("rows", "%d by %d is no size of a terminal", in.Rows, in.Columns)
	}
	return first(checkWords("command", in.Command), checkEnv(in.Env))
}

// Line is the command for people to read.
func (in *ExecRequest) Line() string { return strings.Join(in.Command, " ") }

// The kinds of messages of a session of a command: the first byte of each. The server
// passes them on as they are.
const (
	ExecStdin  byte = 0 // to the command
	ExecStdout byte = 1
	ExecStderr byte = 2
	ExecResize byte = 3 // to the command: {"rows": 24, "columns": 80}
	ExecExit   byte = 4 // the last one of the command: ExecExited as JSON
	ExecEOF    byte = 5 // to the command: its input ends
)

// ExecProtocol is the subprotocol of the WebSockets of a session.
const ExecProtocol = "muster-exec"

// MaxExecMessage bounds a message of a session, in bytes.
const MaxExecMessage = 32<<10 + 1

// ExecExited is how a command ended.
type ExecExited struct {
	Code    int    `json:"code"`              // its status; 128 and the signal's number when one ended it
	Failure string `json:"failure,omitempty"` // why it could not be started
}

// ExecSize is the size of a terminal.
type ExecSize struct {
	Rows    int `json:"rows"`
	Columns int `json:"columns"`
}
