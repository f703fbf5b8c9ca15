package nspawn

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// A console log is cut when more than consoleLimit bytes of it are kept; of its end at least consoleKeep stay.
const (
	consoleLimit = 1 << 20
	consoleKeep  = driver.LogKept
	// consoleGrain is what the beginning of what is kept is a multiple of: of the blocks of every file system.
	consoleGrain = 128 << 10
	// consoleFile is how long the file may become, holes included, before it is begun anew.
	consoleFile = 1 << 40
	// consolePause is how long a log may grow until it is looked at.
	consolePause = 20 * time.Millisecond
	// consolePoll is how often it is looked at where the kernel does not tell that it was written to.
	consolePoll = time.Second
	dnModify    = 2 // DN_MODIFY of fcntl.h
)

var execFailure = regexp.MustCompile(`execv\(.*\) failed: .*`)

// span says which part of a console's output the file console.log has. It is in console.json; without it the file
// has all.
type span struct {
	Base    int64 `json:"base"`    // the place of the file's first byte
	Start   int64 `json:"start"`   // the first place that is kept; the file has a hole before it
	Cutting bool  `json:"cutting"` // the file is just begun anew
}

// span reads which part there is. One that is damaged, as after a power failure, counts as none.
func (m machine) span() (s span) {
	if m.read("console.json", &s) != nil {
		return span{}
	}
	return s
}

func (m machine) setSpan(s span) error { return m.replace("console.json", s) }

// bound drops the oldest of the console log when it is too long. Writers append to the same open file, so a hole is
// made where they no longer are: nothing that is kept moves or gets lost, and places stay what they are. One caller at
// a time.
func (m machine) bound() error {
	f, err := os.OpenFile(m.path("console.log"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	s, size := m.span(), info.Size()
	if s.Cutting { // by one that was killed
		s.Cutting = false
		if err := m.setSpan(s); err != nil {
			return err
		}
	}
	if s.Base+size-s.Start <= consoleLimit {
		return nil
	}
	hole := (size - consoleKeep) / consoleGrain * consoleGrain
	if size > consoleFile {
		return m.beginAnew(f, s, size)
	}
	before := s
	s.Start = s.Base + hole
	// Before the hole: who reads looks again afterwards. On a full disk it fails, and the hole is needed all the more.
	unwritten := m.setSpan(s)
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, hole)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return m.beginAnew(f, before, size)
	}
	return errors.Join(unwritten, err)
}

// beginAnew keeps the end of a file that cannot have a hole, or no longer one. What is written in that moment can be lost.
func (m machine) beginAnew(f *os.File, s span, size int64) error {
	end := make([]byte, consoleKeep)
	if _, err := f.ReadAt(end, size-consoleKeep); err != nil {
		return err
	}
	s.Base += size - consoleKeep
	s.Start, s.Cutting = s.Base, true
	if err := m.setSpan(s); err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.Write(end); err != nil {
		return err
	}
	s.Cutting = false
	return m.setSpan(s)
}

// keepBound bounds the console log soon after it was written to, until the returned function is called. The kernel tells
// that by a signal: of inotify's files it gives a user 128, which are not for the machines to use up.
func (m machine) keepBound() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		told := make(chan os.Signal, 1)
		signal.Notify(told, unix.SIGIO)
		defer signal.Stop(told)
		dir, err := os.Open(m.dir())
		if err == nil {
			defer dir.Close() // before signal.Stop: nothing tells any more
			_, _ = unix.FcntlInt(dir.Fd(), unix.F_SETOWN, os.Getpid())
		}
		for {
			// For one time, and before it is looked at, so that nothing is missed. Without it the clock has to do.
			_, _ = unix.FcntlInt(dir.Fd(), unix.F_NOTIFY, dnModify)
			_ = m.bound() // it is tried again
			select {
			case <-quit:
				return
			case <-time.After(consolePause):
			}
			select {
			case <-quit:
				return
			case <-told:
			case <-time.After(consolePoll):
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// output returns the end of the console, as a Status carries it.
func (m machine) output() (string, error) {
	f, err := os.Open(m.path("console.log"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	end := io.NewSectionReader(f, max(0, info.Size()-driver.OutputLimit), driver.OutputLimit)
	text, err := io.ReadAll(end)
	return muster.Storable(string(text), driver.OutputLimit), err
}

// lastLine returns the console's last line that is not blank.
func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
