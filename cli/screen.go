package cli

import (
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
)

// screen is this process's terminal while a command elsewhere has it: its keys are read
// as they are pressed, and changes of its size are told.
type screen struct {
	in    io.Reader
	files []*os.File           // terminals to ask for the size, the best one first
	sizes chan muster.ExecSize // the newest one, when it has changed
	once  sync.Once
	done  chan struct{}
	told  sync.WaitGroup

	mu     sync.Mutex
	before *unix.Termios // nil: it is as it was
	closed bool
}

// openScreen begins to follow the size; close ends that, and gives the terminal back as it was.
func openScreen(in io.Reader, out io.Writer) *screen {
	s := &screen{in: in, sizes: make(chan muster.ExecSize, 1), done: make(chan struct{})}
	for _, end := range []any{out, in} {
		if file, ok := end.(*os.File); ok && isTerminal(file) {
			s.files = append(s.files, file)
		}
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	s.told.Go(func() {
		defer signal.Stop(resized)
		for {
			select {
			case <-s.done:
				return
			case <-resized:
				select {
				case <-s.sizes:
				default:
				}
				s.sizes <- s.size() // there is room: nobody else sends
			}
		}
	})
	return s
}

// size is that of the terminal, and that of old ones where there is none.
func (s *screen) size() muster.ExecSize {
	for _, file := range s.files {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
			return muster.ExecSize{Rows: int(size.Row), Columns: int(size.Col)}
		}
	}
	return muster.ExecSize{Rows: 24, Columns: 80}
}

// Read reads keys. Until the first one Ctrl-C still ends this process: it is not read from before
// the server has been reached.
func (s *screen) Read(b []byte) (int, error) {
	s.grab()
	return s.in.Read(b)
}

// grab has the terminal hand over keys as they are, and show nothing by itself.
func (s *screen) grab() {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, ok := s.in.(*os.File)
	if !ok || s.closed || s.before != nil {
		return
	}
	before, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	if err != nil {
		return // it is none
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, &raw) == nil {
		s.before = before
	}
}

// close gives the terminal back as it was. It may be called more than once.
func (s *screen) close() {
	s.mu.Lock()
	s.closed = true
	if s.before != nil {
		file, _ := s.in.(*os.File)
		_ = unix.IoctlSetTermios(int(file.Fd()), unix.TCSETS, s.before)
		s.before = nil
	}
	s.mu.Unlock()
	s.once.Do(func() { close(s.done) })
	s.told.Wait()
}
