package nspawn

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// errPortTaken is why what would answer at a port is somebody else.
var errPortTaken = errors.New("another process of the instance listens at it already: stop that one, or give the service another port")

// portIsFree refuses a TCP port that somebody in a machine listens at. Checks of what starts there next would
// find that one well.
func portIsFree(leader process, port int) error {
	if port == 0 {
		return nil
	}
	for _, family := range []string{"tcp", "tcp6"} {
		listening, err := listensAt(fmt.Sprintf("/proc/%d/net/%s", leader.PID, family), port)
		switch {
		case errors.Is(err, fs.ErrNotExist): // no IPv6, or no machine any more
		case err != nil:
			return err
		case listening:
			return fmt.Errorf("port %d: %w", port, errPortTaken)
		}
	}
	return nil
}

// listensAt looks for a port in a table of sockets, as proc(5) has it: the second field is the local address and port in
// hex digits, the fourth the state, of which 0A is listening.
func listensAt(table string, port int) (bool, error) {
	file, err := os.Open(table)
	if err != nil {
		return false, err
	}
	defer file.Close()
	suffix := fmt.Sprintf(":%04X", port)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && fields[3] == "0A" && strings.HasSuffix(fields[1], suffix) {
			return true, nil
		}
	}
	return false, lines.Err()
}
