package cli_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster/cli"
)

// terminal is a pseudo terminal of a width; read returns what was written to it.
func terminal(t *testing.T, columns uint16) (out *os.File, read func() string) {
	t.Helper()
	out, _, read = keyboard(t, columns)
	return out, read
}

// keyboard is a terminal with its other end, which types.
func keyboard(t *testing.T, columns uint16) (out, outer *os.File, read func() string) {
	t.Helper()
	// Not by os.OpenFile, which would make it non-blocking and lose the end.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	outer = os.NewFile(uintptr(fd), "ptmx")
	t.Cleanup(func() { outer.Close() })
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		out, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	text := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		_, err := io.Copy(&b, outer)
		if err != nil && !errors.Is(err, syscall.EIO) { // the other side closed
			t.Error(err)
		}
		text <- strings.ReplaceAll(b.String(), "\r\n", "\n")
	}()
	return out, outer, func() string {
		out.Close()
		return <-text
	}
}

func TestMain_WrapsItsHelp(t *testing.T) {
	out, read := terminal(t, 80)
	code := cli.Main(context.Background(), []string{"server", "--help"}, cli.Std{
		Program: "muster", In: strings.NewReader(""), Out: out, Err: io.Discard,
		LookupEnv: func(string) (string, bool) { return "", false },
	})
	_, flags, _ := strings.Cut(read(), "\nFlags:\n")
	if code != 0 || !strings.Contains(flags, "[MUSTER_UNHEALTHY_AFTER]") {
		t.Fatalf("it ended with %d and printed %q", code, flags)
	}
	for line := range strings.Lines(flags) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("a line has %d characters: %s", n, line)
		}
	}
}

const longInstance = `{"data": {"instances": {"edges": [{"cursor": "", "node": {
	"id": "i-1234", "name": "a-name-of-sixty-characters-as-programs-like-to-make-them-up-12", "status": "FAILED",
	"type": "NANO", "node": {"id": "rack-7-machine-11.example.org", "uid": "u"}, "addr": "10.213.255.254", "baseImage": "minimal",
	"statusReason": "exited with status 9 after it could not find what it was looking for"}}]}}}`

func TestMain_FitsATableIntoATerminal(t *testing.T) {
	for _, test := range []struct {
		name    string
		columns uint16
		env     map[string]string
		args    []string
		want    string
	}{
		{"narrow", 100, map[string]string{"NO_COLOR": "1"}, nil, strings.Join([]string{
			"ID       NAME           STATUS   TYPE   NODE           ADDR             IMAGE     AGE   REASON",
			"i-1234   a-name-of-s…   FAILED   NANO   rack-7-mach…   10.213.255.254   minimal   -     exited with…",
		}, "\n")},
		{"wide", 300, map[string]string{"NO_COLOR": "1"}, nil, "looking for\n"},
		{"coloured", 300, nil, nil, "   \x1b[31mFAILED\x1b[0m   "},
		{"not coloured", 300, map[string]string{"NO_COLOR": "1"}, nil, "   FAILED   "},
		{"nor on a dumb one", 300, map[string]string{"TERM": "dumb"}, nil, "   FAILED   "},
		{"nor with the flag", 300, nil, []string{"--no-color"}, "   FAILED   "},
		{"an empty variable is none", 300, map[string]string{"NO_COLOR": ""}, nil, "\x1b[31m"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, longInstance)
			}))
			defer s.Close()
			out, read := terminal(t, test.columns)
			var said bytes.Buffer
			code := cli.Main(context.Background(), append([]string{"--server", s.URL, "instance", "list"}, test.args...), cli.Std{
				Program: "muster", In: strings.NewReader(""), Out: out, Err: &said,
				LookupEnv: func(name string) (string, bool) { v, ok := test.env[name]; return v, ok },
			})
			text := read()
			if code != 0 || !strings.Contains(text, test.want) {
				t.Errorf("it ended with %d, said %q and printed\n%s\nwithout %q", code, said.String(), text, test.want)
			}
			for line := range strings.Lines(text) {
				if n := len([]rune(strings.TrimRight(line, "\n"))); test.name == "narrow" && n > 100 {
					t.Errorf("a line has %d characters: %s", n, line)
				}
			}
		})
	}
}
