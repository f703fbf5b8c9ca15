package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// readHidden asks for a line on a terminal, which does not show it.
func readHidden(ctx context.Context, terminal *os.File, out io.Writer, question string) (string, error) {
	fd := int(terminal.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return "", fmt.Errorf("read from the terminal: %w", err)
	}
	quiet := *before
	quiet.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &quiet); err != nil {
		return "", fmt.Errorf("read from the terminal: %w", err)
	}
	defer func() {
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, before)
		_, _ = fmt.Fprintln(out) // the one that was typed was not shown either
	}()
	return readLine(ctx, terminal, out, question)
}

// readLine asks for a line on a terminal. The end of ctx is the end of it.
func readLine(ctx context.Context, terminal *os.File, out io.Writer, question string) (string, error) {
	_, _ = fmt.Fprint(out, question)
	fd := int(terminal.Fd())
	var line strings.Builder
	for buffer := make([]byte, 1024); ; {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100) // a read would not see the end of ctx
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err == unix.EINTR || err == nil && ready == 0: //nolint:errorlint // as the kernel gives it
			continue
		case err != nil:
			return "", fmt.Errorf("read from the terminal: %w", err)
		}
		n, err := unix.Read(fd, buffer)
		if err != nil {
			return "", fmt.Errorf("read from the terminal: %w", err)
		}
		line.Write(buffer[:n])
		if text, _, whole := strings.Cut(line.String(), "\n"); whole || n == 0 || line.Len() > 4096 {
			return text, nil
		}
	}
}
