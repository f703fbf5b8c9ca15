package nspawn

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// A console log is cut when it has grown to consoleLimit; consoleKeep bytes of its end stay.
const (
	consoleLimit = 1 << 20
	consoleKeep  = 256 << 10
)

var execFailure = regexp.MustCompile(`execv\(.*\) failed: .*`)

// bound cuts the console log when it is too long. Writers append to the same open file, so it is
// truncated in place; what they write in that moment can be lost. It returns how long the log is then.
func (m machine) bound() (int64, error) {
	f, err := os.OpenFile(m.path("console.log"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= consoleLimit {
		return info.Size(), err
	}
	end := make([]byte, consoleKeep)
	if _, err := f.ReadAt(end, info.Size()-consoleKeep); err != nil {
		return 0, err
	}
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	_, err = f.Write(end)
	return consoleKeep, err
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
