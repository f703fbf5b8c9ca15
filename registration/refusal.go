package registration

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/muster-cloud/muster"
)

// permission is how a server says what its user may not do.
var permission = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "(\S+)"`)

// denial is what the NATS server does not let our user do.
type denial struct {
	verb  string // publish to, or subscribe to
	what  string // the same for each message of a kind, so that it is one reason
	entry bool   // it is about the entries alone
}

func (d *denial) Error() string {
	return fmt.Sprintf("the NATS user may not %s %s; give it publish on %s.> and $JS.API.>, and subscribe on _INBOX.>", d.verb, d.what, Prefix)
}

// complain says what the server has to say of its own accord. Who waits for an answer to what is not
// allowed is told, and says it. That a connection ended is told elsewhere.
func (c *Conn) complain(err error) {
	told := false
	if found := permission.FindStringSubmatch(err.Error()); found != nil {
		told = c.deny(strings.EqualFold(found[1], "publish"), found[2])
	}
	level := slog.LevelDebug
	if !told && (errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrAuthorization)) {
		level = slog.LevelWarn
	}
	c.opts.Logger.Log(context.Background(), level, "the NATS server complains", "err", err)
}

// deny tells those who wait for what is not allowed, and reports whether there were any.
func (c *Conn) deny(publish bool, subject string) (told bool) {
	entry := strings.HasPrefix(subject, Prefix+".")
	d := &denial{"publish to", apiOf(subject), false}
	concerns := func(w *wait) bool { return w.subject == "" }
	switch {
	case !publish:
		d = &denial{"subscribe to", "_INBOX.>, where answers come", false}
		concerns = func(*wait) bool { return true }
		c.doubt() // it subscribes once for each connection
	case entry:
		d = &denial{"publish to", Prefix + ".>, or not to all of it", true}
		concerns = func(w *wait) bool { return w.subject == subject }
	}
	c.lost(d, func(w *wait) bool {
		told = told || concerns(w)
		return concerns(w)
	})
	return told
}

// apiOf is a subject of the JetStream API without what differs from call to call.
func apiOf(subject string) string {
	_, call, ok := strings.Cut(subject, ".API.")
	words := strings.SplitN(call, ".", 3)
	if !ok || len(words) < 2 {
		return subject
	}
	return subject[:len(subject)-len(call)] + words[0] + "." + words[1]
}

// identity is what says as whom we come, for those who have to mend it.
func identity(o ConnectOptions, settings natscontext.Settings) string {
	at := fmt.Sprintf(" of nats-context (%.200s)", o.Context)
	switch {
	case o.Embedded != nil:
		return "the server in this process"
	case o.Credentials != "":
		return fmt.Sprintf("nats-creds (%.200s)", o.Credentials)
	case o.Context != "" && settings.User != "":
		return "user and password" + at
	case o.Context != "" && settings.Creds != "":
		return fmt.Sprintf("creds (%.200s)%s", settings.Creds, at)
	case o.Context != "" && settings.NKey != "":
		return fmt.Sprintf("nkey (%.200s)%s", settings.NKey, at)
	case o.Context != "" && settings.Token != "":
		return "token" + at
	}
	to, err := url.Parse(strings.Split(cmp.Or(settings.URL, o.URL), ",")[0])
	if err != nil || to.User == nil {
		return "nothing: nats-url names no user; give nats-creds or nats-context, or a name and a password in the URL"
	}
	if _, ok := to.User.Password(); ok {
		return "the name and the password in nats-url"
	}
	return "the token in nats-url"
}

// isRefusal tells whether the server is there and does not let us in, or we do not trust it.
func isRefusal(err error) bool { return advice(err, "") != "" }

// advice is what to mend when the server does not let us in; "": that is not it.
func advice(err error, who string) string {
	remote, ok := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked),
		errors.Is(err, nats.ErrAccountAuthExpired), errors.Is(err, nats.ErrNkeysNotSupported):
		return "it does not let us in: mend what says who we are, which is " + who
	case is[x509.UnknownAuthorityError](err), is[x509.HostnameError](err), is[x509.CertificateInvalidError](err):
		return "we do not trust its certificate: name the CA that it is of, as ca of a nats-context"
	case ok && remote.Op == "remote error":
		return "it does not trust us: name a certificate that it takes and its key, as cert and key of a nats-context"
	case errors.Is(err, nats.ErrTLS):
		return "it ends the connection, as one does that does not trust us: name a certificate that it takes and its key, as cert and key of a nats-context"
	case errors.Is(err, nats.ErrSecureConnRequired):
		return "it has no TLS: write nats:// in nats-url"
	case is[*fs.PathError](err), is[*muster.Error](err):
		return "mend what says who we are, which is " + who
	}
	return ""
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// absent is why there is no connection, and what to do.
func (c *Conn) absent() error {
	c.mu.Lock()
	why, who := c.why, c.who
	c.mu.Unlock()
	if why == nil {
		return errNotConnected
	}
	if todo := advice(why, who); todo != "" {
		return fmt.Errorf("%w: %s: %w", errNotConnected, todo, why)
	}
	return fmt.Errorf("%w: %w", errNotConnected, why)
}
