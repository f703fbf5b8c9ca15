package nspawn

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// notice is what systemd-nspawn tells by the sd_notify protocol.
type notice struct {
	leader int  // PID of the machine's process 1, 0 when not told
	ready  bool // the machine is set up; booted: has booted
}

// farewell is what the supervisor tells itself when systemd-nspawn has ended.
const farewell = "MUSTER_ENDED=1"

// notifySocket is in the private runtime directory: a path in the state directory could be longer than
// socket addresses allow.
func notifySocket() *net.UnixAddr {
	return &net.UnixAddr{Name: filepath.Join(runtimeDir, "muster.notify"), Net: "unixgram"}
}

// readNotices sends each notice until the farewell, which comes last, or until the socket is closed.
func readNotices(conn *net.UnixConn, notices chan<- notice) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) == farewell {
			return
		}
		notices <- parseNotice(string(buf[:n]))
	}
}

// sayFarewell queues the end behind everything that systemd-nspawn has told, which has yet to be heard.
func sayFarewell(conn *net.UnixConn) {
	to, err := net.DialUnix("unixgram", nil, notifySocket())
	if err == nil {
		defer to.Close()
		_, err = to.Write([]byte(farewell))
	}
	if err != nil {
		_ = conn.Close() // ends the reading too
	}
}

func parseNotice(text string) notice {
	var n notice
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if value, ok := strings.CutPrefix(line, "X_NSPAWN_LEADER_PID="); ok {
			n.leader, _ = strconv.Atoi(value) // 0 when it is no number: not told
		}
		n.ready = n.ready || line == "READY=1"
	}
	return n
}
