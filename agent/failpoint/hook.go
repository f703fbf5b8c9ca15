package failpoint

import (
	"fmt"
	"io"
	"net"
	"os"
)

// Variable is the environment variable with the path of a test's unix socket.
const Variable = "MUSTER_FAILPOINTS"

// Hook is told each step with its machine. It may take its time, and need not return. It has to be safe for concurrent use.
type Hook func(step Step, machine string)

// Reached calls the hook; nil does nothing.
func (h Hook) Reached(step Step, machine string) {
	if h != nil {
		h(step, machine)
	}
}

// FromEnvironment returns a hook that connects to the socket of Variable at each step, writes the step and the machine as one line and waits
// until the other end closes the connection; nil when the variable is not set. While nobody listens there it does nothing.
func FromEnvironment() Hook {
	path := os.Getenv(Variable)
	if path == "" {
		return nil
	}
	return func(step Step, machine string) {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return // the test is over
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "%s %s\n", step, machine); err == nil {
			_, _ = io.Copy(io.Discard, conn) // until it is closed
		}
	}
}

// Environ returns what a process has to be given in its environment to have the same hook; none without one.
func Environ() []string {
	if path := os.Getenv(Variable); path != "" {
		return []string{Variable + "=" + path}
	}
	return nil
}
