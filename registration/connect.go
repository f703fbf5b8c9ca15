package registration

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/muster-cloud/muster"
)

// ConnectOptions says which NATS server to use, and as whom. One of Embedded, Context and
// URL is given.
type ConnectOptions struct {
	Embedded *Embedded
	Context  string // a context of the nats command: its name, or its file
	// URL is one or more, separated by commas. It may hold a token or a name and a password.
	URL         string
	Credentials string      // a file with a user's JWT and seed; "": none
	TLS         *tls.Config // nil: as the URL says
	Domain      string      // of JetStream; "": the context's, else the server's own
	// OnChange is called when the connection is lost, with the reason, and when it is
	// there again, with nil. It must not block.
	OnChange func(err error)
	Logger   *slog.Logger // nil: slog.Default()
}

// Validate refuses what can never connect, with an INVALID error that names the setting.
func (o *ConnectOptions) Validate() error {
	for at := range strings.SplitSeq(o.URL, ",") {
		scheme, _, given := strings.Cut(strings.TrimSpace(at), "://")
		if given && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
			return muster.InvalidField("nats-url", "%.80q is no scheme of NATS; write nats://HOST:4222, tls, ws or wss", scheme)
		}
	}
	if o.Credentials == "" {
		return nil
	}
	file, err := os.Open(o.Credentials)
	if err != nil {
		return muster.InvalidField("nats-creds", "%v: give a file with a user's JWT and seed that this program may read", err)
	}
	return file.Close()
}

// How long the server may take, and how a connection that was lost is made again.
const (
	connectTimeout = 5 * time.Second
	reconnectWait  = 500 * time.Millisecond
	reconnectMost  = 250 * time.Millisecond // by chance, on top
	pingInterval   = 10 * time.Second
	requestTimeout = 5 * time.Second
	renewPause     = time.Second // between connections that are made anew
)

// Conn is a connection to a NATS server, and to its JetStream.
type Conn struct {
	opts    ConnectOptions
	dialing sync.Mutex // one at a time

	mu      sync.Mutex
	nats    *nats.Conn
	js      jetstream.JetStream
	who     string // what says as whom we come
	why     error  // there is no connection; nil: there is, or nobody knows
	doubted bool   // there is a connection, and another one may do better
	dialed  time.Time
	closed  bool
	waiting map[*wait]struct{} // for an answer
}

// wait is somebody who waits for an answer.
type wait struct {
	subject string // of the entry that was sent; "": JetStream was asked
	lose    context.CancelCauseFunc
}

// request bounds the wait for an answer to what is sent to a subject, "" for JetStream itself: by time, and
// by the connection, for one that was lost, or that may not send it, brings none.
func (c *Conn) request(ctx context.Context, subject string) (context.Context, func()) {
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	ctx, lose := context.WithCancelCause(ctx)
	w := &wait{subject, lose}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[w] = struct{}{}
	return ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, w)
		lose(nil)
		stop()
	}
}

// lost ends waiting for answers, all of it or some.
func (c *Conn) lost(err error, some func(*wait) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.waiting {
		if some(w) {
			w.lose(err)
		}
	}
}

// because is why a request failed, where it was ended for another reason than time.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// Connect reaches a NATS server, and goes on trying when it is not there or does not let us in: only what can
// never work is an error. Whatever is sent while it is away fails at once.
func Connect(opts ConnectOptions) (*Conn, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if strings.ContainsRune(opts.Context, filepath.Separator) {
		// What is no absolute path is taken for a name.
		path, err := filepath.Abs(opts.Context)
		if err != nil {
			return nil, muster.InvalidField("nats-context", "%.200q: %v", opts.Context, err)
		}
		opts.Context = path
	}
	c := &Conn{opts: opts, waiting: map[*wait]struct{}{}}
	if err := c.dial(); err != nil {
		return nil, err
	}
	return c, nil
}

// Close ends the connection.
func (c *Conn) Close() {
	c.mu.Lock()
	c.closed = true
	conn := c.nats
	c.mu.Unlock()
	conn.Close()
}

// JetStream is the connection's, for what this package has no word for.
func (c *Conn) JetStream() jetstream.JetStream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.js
}

func (c *Conn) now() *nats.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nats
}

// Server is the URL of the server that it is connected to, without its password, and ""
// while there is none.
func (c *Conn) Server() string { return c.now().ConnectedUrlRedacted() }

// renew connects anew when the server did not let us in: the files that say who we are may have been
// mended since they were read. While the connection is well nothing happens.
func (c *Conn) renew() {
	if !c.dialing.TryLock() {
		return
	}
	defer c.dialing.Unlock()
	c.mu.Lock()
	old := c.nats
	due := !c.closed && (c.doubted || !old.IsConnected() && isRefusal(c.why)) && time.Since(c.dialed) >= renewPause
	c.mu.Unlock()
	if !due {
		return
	}
	if err := c.dial(); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.why, c.dialed = err, time.Now()
		return
	}
	old.Close()
}

// doubt has the connection made anew at the next occasion.
func (c *Conn) doubt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubted = true
}

// changed takes in what became of the connection.
func (c *Conn) changed(err error) {
	c.mu.Lock()
	c.why = err
	if err == nil {
		c.doubted = false
	}
	c.mu.Unlock()
	if err != nil {
		c.lost(err, func(*wait) bool { return true })
	}
	if c.opts.OnChange != nil {
		c.opts.OnChange(err)
	}
}

func (c *Conn) given() []nats.Option {
	given := []nats.Option{
		nats.Name("muster"), nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectMost, reconnectMost),
		nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(), nats.PingInterval(pingInterval),
		// A message that waits for the connection would be sent when it is no longer wanted.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.complain(err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.changed(cmp.Or(err, nats.ErrDisconnected)) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.changed(err) }),
		nats.ConnectHandler(func(*nats.Conn) { c.changed(nil) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.changed(nil) }),
	}
	if c.opts.Credentials != "" {
		given = append(given, nats.UserCredentials(c.opts.Credentials))
	}
	if c.opts.TLS != nil {
		given = append(given, nats.Secure(c.opts.TLS))
	}
	return given
}

// dial makes the connection, in place of the one that there is.
func (c *Conn) dial() error {
	conn, settings, err := c.open()
	if err != nil {
		return err
	}
	js, err := openJetStream(conn, cmp.Or(c.opts.Domain, settings.JSDomain), settings.JSAPIPrefix)
	if err != nil {
		conn.Close()
		return muster.InvalidField("nats-domain", "%v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nats, c.js, c.who, c.doubted, c.dialed = conn, js, identity(c.opts, settings), false, time.Now()
	if c.closed {
		conn.Close()
	}
	return nil
}

func (c *Conn) open() (conn *nats.Conn, settings natscontext.Settings, err error) {
	switch to := c.opts; {
	case to.Embedded != nil:
		conn, err = nats.Connect("", append(c.given(), nats.InProcessServer(to.Embedded), nats.Token(to.Embedded.secret))...)
	case to.Context != "":
		conn, settings, err = natscontext.Connect(to.Context, c.given()...)
		if err == nil {
			err = unsupported(settings)
		}
		if err != nil {
			if conn != nil {
				conn.Close()
			}
			return nil, settings, muster.InvalidField("nats-context", "%.200q cannot be used: %v", to.Context, err)
		}
	default:
		conn, err = nats.Connect(to.URL, c.given()...)
	}
	if err != nil {
		return nil, settings, muster.InvalidField("nats-url", "no connection can be made: %v", err)
	}
	return conn, settings, nil
}

// unsupported names what a context says and nobody would do.
func unsupported(settings natscontext.Settings) error {
	switch {
	case settings.NSCLookup != "":
		return errors.New("it takes a user from nsc; write the user's credentials to a file, and name that as creds")
	case settings.UserJwt != "":
		return errors.New("it has a user_jwt; write the user's credentials to a file, and name that as creds")
	}
	return nil
}

func openJetStream(conn *nats.Conn, domain, prefix string) (jetstream.JetStream, error) {
	timeout := jetstream.WithDefaultTimeout(requestTimeout)
	switch {
	case domain != "":
		return jetstream.NewWithDomain(conn, domain, timeout)
	case prefix != "":
		return jetstream.NewWithAPIPrefix(conn, prefix, timeout)
	default:
		return jetstream.New(conn, timeout)
	}
}

// api is what the subjects of JetStream's requests begin with.
func (c *Conn) api() string {
	switch o := c.JetStream().Options(); {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	default:
		return jetstream.DefaultAPIPrefix
	}
}
