package registration

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/muster-cloud/muster"
)

// startTimeout is how long the server may take to read its store, diskTrial what a disk
// must take before it is tried again, and restartPause how long it isn't when that was in vain.
const (
	startTimeout = 30 * time.Second
	diskTrial    = 1 << 20
	restartPause = time.Minute
)

// EmbeddedOptions says how a NATS server runs in this process.
type EmbeddedOptions struct {
	Dir    string // where JetStream keeps its files; required
	Listen string // host:port at which others reach it; "": nobody does, and no port is open
	// Token and Users, names with their passwords, are what others present when it listens;
	// one of them is required then.
	Token string
	Users map[string]string
	TLS   *tls.Config // of the port; nil: none
	// MaxBytes is how much the files take at most; 0: 1 GiB.
	MaxBytes int64
	Logger   *slog.Logger // nil: slog.Default()
}

// Validate refuses options that would open the server to everybody.
func (o *EmbeddedOptions) Validate() error {
	if o.Listen == "" {
		return nil
	}
	if _, _, err := splitListen(o.Listen); err != nil {
		return muster.InvalidField("nats-listen", "%.80q is not host:port; give one such as 127.0.0.1:4222", o.Listen)
	}
	if o.Token == "" && len(o.Users) == 0 {
		return muster.InvalidField("nats-listen", "everybody who reaches %s could write into the feed; give a token or users", o.Listen)
	}
	for name, password := range o.Users {
		if name == "" || password == "" {
			return muster.InvalidField("nats-users", "user %.80q has no name or no password; give both", name)
		}
	}
	return nil
}

func splitListen(listen string) (string, int, error) {
	host, text, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return host, int(port), err
}

// Embedded is a NATS server in this process, with JetStream on disk. Nobody but this
// process reaches it unless it listens.
type Embedded struct {
	opts   EmbeddedOptions
	secret string // what our own connections present
	log    *slog.Logger

	// turn is held by who starts or stops the server, which takes its time.
	turn      chan struct{}
	restarted time.Time // when its store had failed
	closed    bool

	mu     sync.Mutex
	server *server.Server
}

// NewEmbedded makes an Embedded, whose server Heal starts and Close stops.
func NewEmbedded(opts EmbeddedOptions) (*Embedded, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 1 << 30
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Embedded{opts: opts, secret: rand.Text(), log: opts.Logger, turn: make(chan struct{}, 1)}, nil
}

// start runs a server on the directory.
func (e *Embedded) start(ctx context.Context) (*server.Server, error) {
	if err := os.MkdirAll(e.opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("the feed's directory: %w", err)
	}
	opts := &server.Options{
		ServerName: "muster", DontListen: e.opts.Listen == "",
		NoSigs: true, NoLog: true, JetStream: true, StoreDir: e.opts.Dir,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: e.opts.MaxBytes,
		CustomClientAuthentication: doorkeeper{e},
		// What others wrote is nowhere else, so it has to be on disk before it is
		// acknowledged. Our own entries come from the registry, which publishes them again.
		SyncAlways: e.opts.Listen != "",
	}
	if e.opts.Listen != "" {
		opts.Host, opts.Port, _ = splitListen(e.opts.Listen)
		if opts.Port == 0 {
			opts.Port = server.RANDOM_PORT
		}
		opts.TLSConfig, opts.TLS, opts.TLSTimeout = e.opts.TLS, e.opts.TLS != nil, 5
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("the feed's NATS server: %w", err)
	}
	log := &natsLog{log: e.log}
	s.SetLoggerV2(log, false, false, false)
	s.Start()
	if err := waitReady(ctx, s, log); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, err
	}
	return s, nil
}

// waitReady waits until s serves, or says why it can't.
func waitReady(ctx context.Context, s *server.Server, log *natsLog) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for ctx.Err() == nil {
		if err := log.failure(); err != nil {
			return fmt.Errorf("the feed's NATS server: %w", err)
		}
		if s.ReadyForConnections(100*time.Millisecond) && s.JetStreamEnabled() {
			return nil
		}
	}
	return fmt.Errorf("the feed's NATS server did not start: %w", context.Cause(ctx))
}

// InProcessConn connects to the server without a socket; it makes an Embedded what
// [nats.InProcessServer] takes.
func (e *Embedded) InProcessConn() (net.Conn, error) {
	if s := e.running(); s != nil {
		return s.InProcessConn()
	}
	return nil, errors.New("the feed's NATS server is stopped")
}

// Addr is where it listens, "" when it does not.
func (e *Embedded) Addr() string {
	if s := e.running(); s != nil && s.Addr() != nil {
		return s.Addr().String()
	}
	return ""
}

// running is the server, nil while there is none.
func (e *Embedded) running() *server.Server {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.server
}

func (e *Embedded) set(s *server.Server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server = s
}

// Heal starts the server and waits until it answers, when it does not run. When its store has given up, as
// it does for good when the disk was full, it is started again as soon as the disk takes
// files. Otherwise Heal does nothing. Its error is why the feed is down.
func (e *Embedded) Heal(ctx context.Context) error {
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.closed {
		return nil
	}
	if s := e.running(); s != nil {
		failed := storeFailure(s)
		if failed == nil {
			return nil
		}
		if err := e.tryDisk(); err != nil {
			return fmt.Errorf("%w; make room on its disk: %w", failed, err)
		}
		if time.Since(e.restarted) < restartPause {
			return failed // again: whatever it is, it is not over
		}
		e.restarted = time.Now()
		e.log.Warn("the feed's NATS server is started again, for its store has failed", "err", failed)
	}
	e.halt()
	s, err := e.start(ctx)
	if err != nil {
		return err
	}
	e.set(s)
	return nil
}

// storeFailure is why a server takes no messages any more, which it does not say to who sends them.
func storeFailure(s *server.Server) error {
	if !s.JetStreamEnabled() {
		return errors.New("the feed's JetStream has given up")
	}
	health := s.Healthz(&server.HealthzOptions{Details: true})
	for _, h := range health.Errors {
		if h.Type == server.HealthzErrorStream && strings.Contains(h.Error, "write error") {
			return fmt.Errorf("the feed's store has failed: %s", h.Error)
		}
	}
	return nil
}

// tryDisk finds out whether files can be written.
func (e *Embedded) tryDisk() error {
	f, err := os.Create(filepath.Join(e.opts.Dir, ".trial"))
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, diskTrial))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// Close stops the server and waits until it has let go of its files.
func (e *Embedded) Close() error {
	e.turn <- struct{}{}
	defer func() { <-e.turn }()
	e.closed = true
	e.halt()
	return nil
}

// halt is for who has the turn.
func (e *Embedded) halt() {
	if s := e.running(); s != nil {
		s.Shutdown()
		s.WaitForShutdown()
		e.set(nil)
	}
}

// doorkeeper admits our own connections, and others by token or password.
type doorkeeper struct{ *Embedded }

// Check tells whether a connection may come in.
func (d doorkeeper) Check(c server.ClientAuthentication) bool {
	given := c.GetOpts()
	if same(given.Token, d.secret) || d.opts.Token != "" && same(given.Token, d.opts.Token) {
		return true
	}
	password, ok := d.opts.Users[given.Username]
	return ok && same(given.Password, password)
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// natsLog passes on what the server has to say: what it merely notices is for those
// who debug.
type natsLog struct {
	log *slog.Logger

	mu    sync.Mutex
	fatal error
}

func (l *natsLog) say(level slog.Level, format string, args []any) {
	if text := strings.TrimSpace(fmt.Sprintf(format, args...)); text != "" {
		l.log.Log(context.Background(), level, "nats: "+text)
	}
}

// failure is what the server gave up over.
func (l *natsLog) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}

// Fatalf is where the server expects the process to end; the error is handed to who
// started it instead.
func (l *natsLog) Fatalf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatal == nil {
		l.fatal = fmt.Errorf(format, args...)
	}
}

// The levels of the server.
func (l *natsLog) Noticef(format string, args ...any) { l.say(slog.LevelDebug, format, args) }
func (l *natsLog) Warnf(format string, args ...any)   { l.say(slog.LevelWarn, format, args) }
func (l *natsLog) Errorf(format string, args ...any)  { l.say(slog.LevelError, format, args) }
func (l *natsLog) Debugf(string, ...any)              {}
func (l *natsLog) Tracef(string, ...any)              {}
