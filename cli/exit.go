package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
)

// The exit codes that scripts rely on.
const (
	exitOK           = 0
	exitFailure      = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitConflict     = 4
	exitNoCapacity   = 5
	exitUnavailable  = 6
	exitWait         = 7
	exitDegraded     = 8
	exitRefused      = 9 // of what writes files from the discovery feed
	exitCheckFailed  = 10
	exitReloadFailed = 11
	exitExecFailed   = 125 // of `muster exec`, as other tools that run commands elsewhere have it
	exitCannotRun    = 126
	exitInterrupted  = 130 // as shells have it
)

const exitCodesText = `muster's exit codes, for scripts:

    0  done
    1  it failed for another reason
    2  the command line, a setting or an input is wrong
    3  no such node, instance or service
    4  it contradicts the present state, or exists already
    5  no node has room
    6  the server cannot be reached or cannot take it now: try again
    7  --wait: it ended up in another status, or not in time
    8  muster cluster health: the cluster is DEGRADED; muster doctor: a check is FAIL
    9  muster render: the guard left the file as it was
   10  muster render: the check of a new text failed
   11  muster render: the reload failed, and the file is what it was
  130  interrupted, by Ctrl-C or so

muster exec ends with the status of the command that it ran, 128 and the number of the
signal if one ended it, and otherwise with

  125  muster failed, whatever the reason: there is no such instance, the connection was lost
  126  the command could not be run
  127  there is no command of that name

An error is one line on standard error: muster: WHAT IS WRONG; WHAT TO DO.
`

// waitError is a --wait that did not end as wished.
type waitError struct{ text string }

func (e *waitError) Error() string { return e.text }

// usageError is a command line that cannot be followed.
func usageError(format string, args ...any) *muster.Error {
	return muster.Errorf(muster.Invalid, format, args...)
}

// exitCode returns the code that err ends the process with.
func exitCode(err error) int {
	var wait *waitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &wait):
		return exitWait
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnavailable
	}
	switch muster.CodeOf(err) {
	case muster.Invalid:
		return exitUsage
	case muster.NotFound, muster.UnknownNode:
		return exitNotFound
	case muster.AlreadyExists, muster.Conflict, muster.DuplicateIdentity, muster.Superseded:
		return exitConflict
	case muster.NoCapacity:
		return exitNoCapacity
	case muster.Unavailable:
		return exitUnavailable
	}
	return exitFailure
}

// describe returns what is printed of err: one line, and for NO_CAPACITY one
// more for each node.
func describe(err error) string {
	var b strings.Builder
	fmt.Fprintf(&b, "muster: %s\n", oneLine(inOurWords(err.Error())))
	e, ok := errors.AsType[*muster.Error](err)
	if !ok || e.Code != muster.NoCapacity {
		return b.String()
	}
	for _, line := range nodeReasons(e.Details["nodes"]) {
		fmt.Fprintf(&b, "  %s\n", oneLine(line))
	}
	return b.String()
}

// nodeReasons reads `extensions.nodes` of NO_CAPACITY: each node's reason, as a
// list of objects or an object by node.
func nodeReasons(nodes any) []string {
	var lines []string
	switch nodes := nodes.(type) {
	case []any:
		for _, item := range nodes {
			if object, ok := item.(map[string]any); ok {
				lines = append(lines, fmt.Sprintf("%v: %v", first(object, "node", "id", "nodeId"), object["reason"]))
			}
		}
	case map[string]any:
		for node, reason := range nodes {
			lines = append(lines, fmt.Sprintf("%s: %v", node, reason))
		}
		slices.Sort(lines)
	}
	return lines
}

func first(object map[string]any, keys ...string) any {
	for _, key := range keys {
		if value, ok := object[key]; ok {
			return value
		}
	}
	return "?"
}

// exitCodesTopic is `muster help exit-codes`.
func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: strings.TrimSpace(exitCodesText)}
}
