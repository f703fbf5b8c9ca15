package cli

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/local"
	"github.com/muster-cloud/muster/registry/auth"
)

// keyVariable is the variable with an access key. There is no flag for one: whoever
// lists the processes would see it.
const keyVariable = "MUSTER_KEY"

// target is the server that a command is for, and what is presented to it.
type target struct {
	url   string
	here  *here                   // nil: it is none of this machine that announced itself
	first bool                    // the key is that of its first start
	named bool                    // somebody said which server
	key   string                  // empty: none was found
	from  string                  // where the key is from, for people
	keep  func(text string) error // replaces the key there; nil: that is for its owner to do
	roots []*x509.Certificate     // that vouch for the server; nil: this machine's
	note  string                  // what else is worth knowing when there is no key
}

// noteGiven notes what was given as a flag, before variables are read: a flag counts more
// than any variable, also that of another setting.
func (a *app) noteGiven(c *cobra.Command) {
	a.serverGiven, a.contextGiven = c.Flags().Changed("server"), c.Flags().Changed("context")
}

// aim finds the server and the key for it, once.
func (a *app) aim() (*target, error) {
	if a.aimed == nil {
		t, err := a.findTarget()
		if err != nil {
			return nil, err
		}
		a.aimed = t
	}
	return a.aimed, nil
}

// findTarget looks for a key in MUSTER_KEY, in --key-file, in the context and with the
// server of this machine, in this order. The last two are for one server each, and are
// presented to no other.
func (a *app) findTarget() (*target, error) {
	t, context, err := a.chooseServer()
	if err != nil {
		return nil, err
	}
	return t, a.fill(t, context)
}

// fill finds what is presented to a server, and what that is verified by. A nil context:
// none is for it.
func (a *app) fill(t *target, context *savedContext) (err error) {
	if t.here, err = a.findHere(t); err != nil {
		return err
	}
	if err := a.findKey(t, context); err != nil {
		return err
	}
	return a.findTrust(t, context)
}

// chooseServer returns the server that is meant, and the context that is for it, if any.
func (a *app) chooseServer() (*target, *savedContext, error) {
	context, err := a.chooseContext()
	if err != nil {
		return nil, nil, err
	}
	server, _ := a.std.LookupEnv(variableOf("server"))
	variable, _ := a.std.LookupEnv(variableOf("context"))
	// The flags of a line that is being completed are read after noteGiven.
	serverGiven := a.serverGiven || a.server != cmp.Or(server, client.DefaultURL)
	contextGiven := a.contextGiven || a.context != variable
	named := serverGiven || server != "" && !contextGiven
	switch {
	case context == nil:
		return &target{url: a.server, named: named}, nil, nil
	case !named:
		return &target{url: context.Server, named: true}, context, nil
	case sameServer(a.server, context.Server):
		return &target{url: a.server, named: true}, context, nil
	case serverGiven && contextGiven:
		return nil, nil, usageError("--server is %s, and the context %s is for %s; leave one of them out", a.server, context.Name, context.Server)
	}
	return &target{url: a.server, named: true}, nil, nil
}

func (a *app) chooseContext() (*savedContext, error) {
	s, err := a.load()
	switch {
	case errors.Is(err, fs.ErrPermission) && a.context == "": // another user's, as HOME says after a change of user
		return nil, nil
	case err != nil:
		return nil, err
	case a.context != "":
		return s.must(a.context)
	}
	return s.find(s.Current), nil
}

// here is a server of this machine, and where this machine reaches it.
type here struct {
	local.Server
	at netip.AddrPort
}

// findHere finds the server on this machine that a target is, or nil. Where no server was
// named, a single one that is not at the usual address is meant as well.
func (a *app) findHere(t *target) (*here, error) {
	u, err := url.Parse(t.url)
	if _, invalid := origin(t.url); err != nil || invalid != nil {
		return nil, nil // the client says so
	}
	port, _ := strconv.ParseUint(cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme]), 10, 16) // origin has read it
	servers := local.Servers(local.Lookup(a.std.LookupEnv))
	for _, s := range servers {
		if at, ok := s.At(u.Hostname(), uint16(port)); ok && (at.Addr().IsLoopback() || u.Scheme == "https" && s.CAFile != "") {
			u.Host = at.String() // not a name: it may be somebody else's as well
			t.url = u.String()
			return &here{s, at}, nil
		}
	}
	if t.named || len(servers) != 1 {
		return nil, nil
	}
	return t.be(servers[0]), nil
}

// be makes a server of this machine the target, if its key can be sent there.
func (t *target) be(s local.Server) *here {
	if at, ok := s.Loopback(); ok {
		t.url = "http://" + at.String()
		return &here{s, at}
	}
	if s.CAFile == "" {
		return nil
	}
	t.url = "https://" + s.Addr.String()
	return &here{s, s.Addr}
}

func (a *app) findKey(t *target, context *savedContext) error {
	if text, _ := a.std.LookupEnv(keyVariable); text != "" {
		return t.take(text, keyVariable)
	}
	if a.keyFile != "" {
		text, err := keyfile.Read(a.keyFile)
		if errors.Is(err, fs.ErrNotExist) {
			return usageError("there is no key file %s; see --key-file", a.keyFile)
		}
		if err != nil {
			return err
		}
		return t.take(string(text), a.keyFile)
	}
	if context != nil && context.Key != "" {
		t.keep = func(text string) error {
			return a.editContext(context.Name, func(_ *saved, c *savedContext) { c.Key = text })
		}
		return t.take(context.Key, "context "+context.Name)
	}
	if t.here == nil {
		return nil
	}
	return t.takeFirst(t.here.KeyFile)
}

// takeFirst has the key of the first start of a server of this machine presented.
func (t *target) takeFirst(path string) error {
	text, err := keyfile.Read(path)
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.note = fmt.Sprintf("the server runs here as another user, who alone can read %s", path)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		t.note = fmt.Sprintf("the server of this machine has no %s any more", path)
		return nil
	case err != nil:
		return err
	}
	t.first, t.keep = true, func(text string) error { return keyfile.Replace(path, []byte(text+"\n")) }
	return t.take(string(text), path)
}

// take has a key presented; what is none is refused before anybody sees it.
func (t *target) take(text, from string) error {
	key, err := auth.ParseKey(text)
	if err != nil {
		return muster.Errorf(muster.CodeOf(err), "%s: %w", from, err)
	}
	t.key, t.from = key.Text(), from
	return nil
}

// findTrust finds what the server is verified by: --ca, the context, or what the server
// of this machine announced; else this machine's authorities.
func (a *app) findTrust(t *target, context *savedContext) (err error) {
	var text []byte
	switch {
	case a.caFile != "":
		if text, err = os.ReadFile(a.caFile); err != nil {
			return usageError("--ca cannot be read: %w", err)
		}
	case context != nil && context.CA != "":
		text = []byte(context.CA)
	case t.here != nil && t.here.CAFile != "":
		if text, err = os.ReadFile(t.here.CAFile); err != nil {
			return nil // it is for loopback, or the handshake fails
		}
	default:
		return nil
	}
	roots, err := auth.DecodeBundle(text)
	if err != nil {
		return usageError("the certificates to verify %s by cannot be read: %w; see --ca", t.url, err)
	}
	t.roots = roots
	return nil
}

// warnOfPlainText says that a key can be read on its way.
func (a *app) warnOfPlainText(t *target) {
	u, err := url.Parse(t.url)
	if err != nil || t.key == "" || u.Scheme != "http" {
		return
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || err == nil && ip.Unmap().IsLoopback() {
		return
	}
	a.say("WARNING: %s is not encrypted: whoever is on the way can read the access key; use https", t.url)
}

// options are those of a client of the target. An authority of a cluster vouches for the
// cluster's server at whatever address; for any other the name in the URL counts.
func (t *target) options(timeout time.Duration) client.Options {
	o := client.Options{URL: t.url, Key: t.key, UserAgent: "muster/" + version, Timeout: timeout, Within: timeout}
	if len(t.roots) > 0 {
		o.Trust = func() auth.Trust { return auth.Trust{Roots: t.roots} }
	}
	return o
}

// explain adds to a refusal where the key was from, or where one is looked for, and to
// silence how to have a server.
func (a *app) explain(err error) error {
	switch {
	case a.aimed == nil:
		return err
	case muster.CodeOf(err) == muster.Unauthenticated:
		return a.aimed.explain(err)
	case muster.CodeOf(err) == muster.Unavailable:
		return a.aimed.nobodyThere(err)
	}
	return err
}

func (t *target) explain(err error) error {
	if t.key != "" {
		return muster.Errorf(muster.Unauthenticated, "%w (the key is from %s)", err, t.from)
	}
	note := ""
	if t.note != "" {
		note = " (" + t.note + ")"
	}
	return muster.Errorf(muster.Unauthenticated,
		"%s asks for an access key, and there is none%s; run muster login %s, or set MUSTER_KEY or --key-file, or run this where the server runs, as its user or root", t.url, note, t.url)
}
