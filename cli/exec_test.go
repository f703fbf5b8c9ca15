package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/cli"
)

// session is the server's side of one command.
type session struct {
	t       *testing.T
	conn    *websocket.Conn
	request muster.ExecRequest
}

// execServer is a server whose commands are run by run, and the environment that finds it.
func execServer(t *testing.T, run func(*session)) func(string) (string, bool) {
	t.Helper()
	done := make(chan struct{}, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/graphql": // svc-1 is asked for
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"data": {"service": {"id": "svc-1", "instanceId": "i-1", "deployUrl": "http://h/app", "user": "www"}}}`)
			return
		case "/exec/i-1":
		default:
			http.NotFound(w, r)
			return
		}
		upgrader := websocket.Upgrader{Subprotocols: []string{muster.ExecProtocol}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		one := &session{t: t, conn: conn}
		if err := conn.ReadJSON(&one.request); err != nil {
			t.Error(err)
		}
		run(one)
		done <- struct{}{}
	}))
	t.Cleanup(func() {
		<-done
		s.Close()
	})
	env := map[string]string{"MUSTER_SERVER": s.URL, "MUSTER_KEY": someKey, "SECRET": "of mine"}
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func (s *session) send(kind byte, payload string) {
	if err := s.conn.WriteMessage(websocket.BinaryMessage, append([]byte{kind}, payload...)); err != nil {
		s.t.Error(err)
	}
}

func (s *session) exit(e muster.ExecExited) {
	b, err := json.Marshal(e)
	if err != nil {
		s.t.Error(err)
	}
	s.send(muster.ExecExit, string(b))
}

// next is the caller's next message; kind 255: the connection has ended.
func (s *session) next() (kind byte, payload string) {
	_, message, err := s.conn.ReadMessage()
	if err != nil || len(message) == 0 {
		return 255, ""
	}
	return message[0], string(message[1:])
}

// input is all that the caller has the command read.
func (s *session) input() string {
	var b strings.Builder
	for {
		switch kind, payload := s.next(); kind {
		case muster.ExecStdin:
			b.WriteString(payload)
		case muster.ExecResize:
		default:
			return b.String()
		}
	}
}

func TestExec_PassesStreamsAndStatusOn(t *testing.T) {
	for name, c := range map[string]struct {
		args, stdin string
		want        muster.ExecRequest
		read        string // by the command
		exited      muster.ExecExited
		code        int
		said        string // by muster
	}{
		"it is well":     {args: "-- cat -n", stdin: "a\nb\n", want: muster.ExecRequest{Command: []string{"cat", "-n"}}, read: "a\nb\n"},
		"its status":     {args: "-- sh -c x", want: muster.ExecRequest{Command: []string{"sh", "-c", "x"}}, exited: muster.ExecExited{Code: 42}, code: 42},
		"a signal":       {args: "-- x", want: muster.ExecRequest{Command: []string{"x"}}, exited: muster.ExecExited{Code: 137}, code: 137},
		"not found":      {args: "-- x", want: muster.ExecRequest{Command: []string{"x"}}, exited: muster.ExecExited{Code: 127, Failure: "there is none"}, code: 127, said: "muster: x could not be run: there is none\n"},
		"not to be run":  {args: "-- x", want: muster.ExecRequest{Command: []string{"x"}}, exited: muster.ExecExited{Failure: "exec format\x1b"}, code: 126, said: "muster: x could not be run: exec format·\n"},
		"all flags":      {args: "-u nobody:www -w /srv -e A=b=c -e SECRET -- x", want: muster.ExecRequest{Command: []string{"x"}, User: "nobody:www", Dir: "/srv", Env: muster.Map{"A": "b=c", "SECRET": "of mine"}}},
		"no input":       {args: "--stdin=false -- x", stdin: "for others", want: muster.ExecRequest{Command: []string{"x"}}},
		"as with others": {args: "-it -- x", stdin: "keys", want: muster.ExecRequest{Command: []string{"x"}, Terminal: true, Rows: 24, Columns: 80}, read: "keys"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want.Env == nil {
				c.want.Env = muster.Map{}
			}
			lookup := execServer(t, func(s *session) {
				if diff := cmp.Diff(c.want, s.request); diff != "" {
					t.Errorf("it asked (-want +got):\n%s", diff)
				}
				if got := s.input(); got != c.read {
					t.Errorf("the command reads %q, want %q", got, c.read)
				}
				s.send(muster.ExecStdout, "out\x00put")
				s.send(muster.ExecStderr, "an error")
				s.exit(c.exited)
			})
			var stdout, stderr strings.Builder
			code := cli.Main(t.Context(), append([]string{"exec", "i-1"}, strings.Fields(c.args)...), cli.Std{
				Program: "muster", In: strings.NewReader(c.stdin), Out: &stdout, Err: &stderr, LookupEnv: lookup,
			})
			if code != c.code || stdout.String() != "out\x00put" || stderr.String() != "an error"+c.said {
				t.Errorf("it ended with %d, want %d, printed %q and said %q", code, c.code, stdout.String(), stderr.String())
			}
		})
	}
}

// TestExec_BesideAService runs a command as the service would find it.
func TestExec_BesideAService(t *testing.T) {
	const lookup = "/opt/muster/svc-1:/opt/muster/svc-1/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	for name, c := range map[string]struct {
		args string
		want muster.ExecRequest
	}{
		"as it is":      {"svc-1 -- probe", muster.ExecRequest{Command: []string{"probe"}, User: "www", Dir: "/opt/muster/svc-1", Env: muster.Map{"PATH": lookup}}},
		"as it is told": {"svc-1 -u 0 -w / -e PATH=/bin -- probe", muster.ExecRequest{Command: []string{"probe"}, User: "0", Dir: "/", Env: muster.Map{"PATH": "/bin"}}},
	} {
		t.Run(name, func(t *testing.T) {
			env := execServer(t, func(s *session) {
				if diff := cmp.Diff(c.want, s.request); diff != "" {
					t.Errorf("it asked (-want +got):\n%s", diff)
				}
				s.exit(muster.ExecExited{})
			})
			code := cli.Main(t.Context(), append([]string{"exec"}, strings.Fields(c.args)...), cli.Std{
				Program: "muster", In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, LookupEnv: env,
			})
			if code != 0 {
				t.Errorf("it ended with %d", code)
			}
		})
	}
}

func TestExec_EndsWith125WhenMusterFails(t *testing.T) {
	refused := func(s *session) {
		_ = s.conn.WriteMessage(websocket.TextMessage, []byte(`{"code": "CONFLICT", "message": "instance i-1 is STOPPED: start it"}`))
	}
	lost := func(*session) {}
	for name, c := range map[string]struct {
		run  func(*session) // nil: it is not asked
		args string
		want string
	}{
		"refused":               {refused, "i-1 -- x", "muster: instance i-1 is STOPPED: start it\n"},
		"a lost connection":     {lost, "i-1 -- x", "muster: "},
		"no instance":           {nil, "", "muster: the instance is missing; write such as muster exec i-1 -- sh\n"},
		"no instance before --": {nil, "-- x", "muster: the instance is missing; write such as muster exec i-1 -- sh\n"},
		"no command":            {nil, "i-1", "muster: the command is missing; write such as muster exec i-1 -- sh\n"},
		"no --":                 {nil, "i-1 ls", "muster: \"ls\" is neither a flag nor the instance, which is \"i-1\"; the command comes after --\n"},
		"another flag":          {nil, "i-1 --nothing -- x", "muster: unknown flag: --nothing; see muster exec --help\n"},
		"no directory":          {nil, "i-1 -w srv -- x", "muster: dir: \"srv\" is no absolute path in the instance\n"},
		"no variable":           {nil, "i-1 -e NOBODYS -- x", "muster: --env \"NOBODYS\": there is no variable NOBODYS in my environment to take the value from; set it, or give KEY=VALUE\n"},
	} {
		t.Run(name, func(t *testing.T) {
			lookup := func(string) (string, bool) { return "", false }
			if c.run != nil {
				lookup = execServer(t, c.run)
			}
			var stdout, stderr strings.Builder
			code := cli.Main(t.Context(), append([]string{"exec"}, strings.Fields(c.args)...), cli.Std{
				Program: "muster", In: strings.NewReader(""), Out: &stdout, Err: &stderr, LookupEnv: lookup,
			})
			if code != 125 || stdout.String() != "" || !strings.HasPrefix(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") != 1 {
				t.Errorf("it ended with %d, printed %q and said %q, want %q", code, stdout.String(), stderr.String(), c.want)
			}
		})
	}
}

// An interrupt ends the connection, and with it the command.
func TestExec_KillsItsCommandWhenInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	lookup := execServer(t, func(s *session) {
		interrupt()
		if kind, payload := s.next(); kind != 255 {
			t.Errorf("the connection goes on with %d %q", kind, payload)
		}
	})
	stdin, typing := io.Pipe()
	defer typing.Close()
	var stdout, stderr strings.Builder
	code := cli.Main(ctx, []string{"exec", "i-1", "--", "sleep", "1000"}, cli.Std{
		Program: "muster", In: stdin, Out: &stdout, Err: &stderr, LookupEnv: lookup,
	})
	if code != 130 || stderr.String() != "muster: interrupted, and the command was killed\n" {
		t.Errorf("it ended with %d and said %q", code, stderr.String())
	}
}

// duplex is a pseudo terminal: inner is what a program has, outer the keyboard and the screen.
func duplex(t *testing.T) (inner, outer *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	outer = os.NewFile(uintptr(fd), "ptmx")
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	inner, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inner.Close(); outer.Close() })
	resize(t, outer, 40, 100)
	return inner, outer
}

func resize(t *testing.T, outer *os.File, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(outer.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Error(err)
	}
}

func modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Error(err)
		return unix.Termios{}
	}
	return *m
}

const cooked = unix.ICANON | unix.ECHO | unix.ISIG

// grabbed waits until keys go to the command.
func grabbed(t *testing.T, inner *os.File) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		raw := modes(t, inner)
		if raw.Lflag&cooked == 0 && raw.Oflag&unix.OPOST == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("the terminal is not raw: %x", raw.Lflag)
			return
		}
	}
}

func TestExec_GivesTheTerminalBackAsItWas(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(s *session, interrupt func()) // of the command
		code int
		said string
	}{
		"it ends":                {func(s *session, _ func()) { s.exit(muster.ExecExited{Code: 3}) }, 3, ""},
		"the connection is lost": {func(*session, func()) {}, 125, "muster: "},
		"an interrupt":           {func(s *session, interrupt func()) { interrupt(); s.next() }, 130, "muster: interrupted, and the command was killed\n"},
		"a hang-up": {func(s *session, _ func()) {
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Error(err)
			}
			s.next()
		}, 130, "muster: interrupted, and the command was killed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			inner, outer := duplex(t)
			before := modes(t, inner)
			if before.Lflag&cooked != cooked {
				t.Fatalf("the terminal begins with the modes %x", before.Lflag)
			}
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			lookup := execServer(t, func(s *session) {
				if s.request.Rows != 40 || s.request.Columns != 100 || !s.request.Terminal {
					t.Errorf("it asked for %+v", s.request)
				}
				grabbed(t, inner)
				if _, err := outer.WriteString("\x03"); err != nil { // Ctrl-C
					t.Error(err)
				}
				if kind, payload := s.next(); kind != muster.ExecStdin || payload != "\x03" {
					t.Errorf("the command gets %d %q, want Ctrl-C", kind, payload)
				}
				resize(t, outer, 50, 120)
				if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
					t.Error(err)
				}
				if kind, payload := s.next(); kind != muster.ExecResize || payload != `{"rows":50,"columns":120}` {
					t.Errorf("the command is told %d %q, want the new size", kind, payload)
				}
				c.end(s, interrupt)
			})
			var stderr strings.Builder
			code := cli.Main(ctx, []string{"exec", "i-1", "--", "sh"}, cli.Std{Program: "muster", In: inner, Out: inner, Err: &stderr, LookupEnv: lookup})
			if after := modes(t, inner); after != before {
				t.Errorf("the terminal has the modes %+v, want %+v", after, before)
			}
			if code != c.code || !strings.HasPrefix(stderr.String(), c.said) {
				t.Errorf("it ended with %d, want %d, and said %q", code, c.code, stderr.String())
			}
		})
	}
}
