package nspawn

import (
	"context"
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

// notifySocket is in the private runtime directory: a path in the state directory could be longer than
// socket addresses allow.
func notifySocket() string { return filepath.Join(runtimeDir, "muster.notify") }

func listenNotify() (*net.UnixConn, error) {
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notifySocket(), Net: "unixgram"})
}

// readNotices sends each notice until the socket is closed or ctx ends.
func readNotices(ctx context.Context, conn *net.UnixConn, notices chan<- notice) {
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		select {
		case notices <- parseNotice(string(buf[:n])):
		case <-ctx.Done():
			return
		}
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
