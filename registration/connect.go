package registration

import (
	"cmp"
	"crypto/tls"
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
	}
	if opts.OnChange != nil {
		given = append(given, onChange(opts.OnChange)...)
	}
	if opts.Credentials != "" {
		given = append(given, nats.UserCredentials(opts.Credentials))
	}
	if opts.TLS != nil {
		given = append(given, nats.Secure(opts.TLS))
	}
	return dial(opts, given)
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

func dial(opts ConnectOptions, given []nats.Option) (*Conn, error) {
	var conn *nats.Conn
	var context natscontext.Settings
	var err error
	switch {
	case opts.Embedded != nil:
		conn, err = nats.Connect("", append(given, nats.InProcessServer(opts.Embedded), nats.Token(opts.Embedded.secret))...)
	case opts.Context != "":
		conn, context, err = natscontext.Connect(opts.Context, given...)
		if err != nil {
			return nil, muster.InvalidField("nats-context", "%.200q cannot be used: %v", opts.Context, err)
		}
	default:
		conn, err = nats.Connect(opts.URL, given...)
	}
	if err != nil {
		return nil, muster.InvalidField("nats-url", "no connection can be made: %v", err)
	}
	js, err := openJetStream(conn, cmp.Or(opts.Domain, context.JSDomain), context.JSAPIPrefix)
	if err != nil {
		conn.Close()
		return nil, muster.InvalidField("nats-domain", "%v", err)
	}
	return &Conn{conn, js}, nil
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
