package registration

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
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

// How long the server may take, and how a connection that was lost is made again.
const (
	connectTimeout = 5 * time.Second
	reconnectWait  = 500 * time.Millisecond
	reconnectMost  = 250 * time.Millisecond // by chance, on top
	pingInterval   = 10 * time.Second
	requestTimeout = 5 * time.Second
)

// Conn is a connection to a NATS server, and to its JetStream.
type Conn struct {
	nats *nats.Conn
	js   jetstream.JetStream

	mu      sync.Mutex
	waiting map[*context.CancelCauseFunc]struct{} // for an answer
}

// request bounds the wait for an answer: by time, and by the connection, for one that was lost
// brings none.
func (c *Conn) request(ctx context.Context) (context.Context, func()) {
	ctx, stop := context.WithTimeout(ctx, requestTimeout)
	ctx, lose := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting[&lose] = struct{}{}
	return ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, &lose)
		lose(nil)
		stop()
	}
}

// lost ends all waiting for answers.
func (c *Conn) lost(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for lose := range c.waiting {
		(*lose)(err)
	}
}

// Connect reaches a NATS server, and goes on trying when it is not there: only what can
// never work is an error. Whatever is sent while it is away fails at once.
func Connect(opts ConnectOptions) (*Conn, error) {
	given := []nats.Option{
		nats.Name("muster"), nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectMost, reconnectMost),
		nats.RetryOnFailedConnect(true), nats.IgnoreAuthErrorAbort(), nats.PingInterval(pingInterval),
		// A message that waits for the connection would be sent when it is no longer wanted.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { complain(opts.Logger, err) }),
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	c := &Conn{waiting: map[*context.CancelCauseFunc]struct{}{}}
	given = append(given, onChange(func(err error) {
		if err != nil {
			c.lost(err)
		}
		if opts.OnChange != nil {
			opts.OnChange(err)
		}
	})...)
	if opts.Credentials != "" {
		given = append(given, nats.UserCredentials(opts.Credentials))
	}
	if opts.TLS != nil {
		given = append(given, nats.Secure(opts.TLS))
	}
	if err := c.dial(opts, given); err != nil {
		return nil, err
	}
	return c, nil
}

// complain says what the server has to say of its own accord, such as what we are not allowed. That
// a connection ended is told elsewhere.
func complain(log *slog.Logger, err error) {
	level := slog.LevelDebug
	if errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrAuthorization) {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, "the NATS server complains", "err", err)
}

// Close ends the connection.
func (c *Conn) Close() { c.nats.Close() }

// JetStream is the connection's, for what this package has no word for.
func (c *Conn) JetStream() jetstream.JetStream { return c.js }

// Server is the URL of the server that it is connected to, without its password, and ""
// while there is none.
func (c *Conn) Server() string { return c.nats.ConnectedUrlRedacted() }

func onChange(tell func(error)) []nats.Option {
	return []nats.Option{
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err == nil {
				err = nats.ErrDisconnected
			}
			tell(err)
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { tell(err) }),
		nats.ConnectHandler(func(*nats.Conn) { tell(nil) }),
		nats.ReconnectHandler(func(*nats.Conn) { tell(nil) }),
	}
}

func (c *Conn) dial(opts ConnectOptions, given []nats.Option) (err error) {
	var settings natscontext.Settings
	switch {
	case opts.Embedded != nil:
		c.nats, err = nats.Connect("", append(given, nats.InProcessServer(opts.Embedded), nats.Token(opts.Embedded.secret))...)
	case opts.Context != "":
		c.nats, settings, err = natscontext.Connect(opts.Context, given...)
		if err != nil {
			return muster.InvalidField("nats-context", "%.200q cannot be used: %v", opts.Context, err)
		}
	default:
		c.nats, err = nats.Connect(opts.URL, given...)
	}
	if err != nil {
		return muster.InvalidField("nats-url", "no connection can be made: %v", err)
	}
	c.js, err = openJetStream(c.nats, cmp.Or(opts.Domain, settings.JSDomain), settings.JSAPIPrefix)
	if err != nil {
		c.nats.Close()
		return muster.InvalidField("nats-domain", "%v", err)
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
