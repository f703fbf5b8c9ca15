package agent

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registry/auth"
)

// maxSkew is how far the clocks of a node and its server may be apart at joining.
const maxSkew = 5 * time.Minute

// JoinOptions are how a node joins. StateDir and Join have to be there.
type JoinOptions struct {
	StateDir  string          // of the agent; made if need be
	Join      auth.Join       // where, and with which token
	ID        muster.NodeID   // the name that the node is to have; default the one that it had before, else the hostname
	UserAgent string          // default the client's
	Transport *http.Transport // default the client's
	Logger    *slog.Logger    // default none
}

// Join exchanges a join token for a node's credentials and keeps them. A token that was
// exchanged here before is not presented again. While the server cannot be reached it
// tries again, until ctx ends; every try is with the same private key, so that one whose
// answer got lost does no harm.
//
// UNAUTHENTICATED: the token is not good, or what answers is not the server that made it,
// which then gets nothing; FORBIDDEN: the token was used; ALREADY_EXISTS: another machine
// has the name; INVALID: the clocks are too far apart.
func Join(ctx context.Context, o JoinOptions) (*Credentials, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	file, err := openIdentity(ctx, o.StateDir) // no other agent is at work there
	if err != nil {
		return nil, err
	}
	defer file.close()
	is := joined{Server: "http://" + o.Join.Address(), Token: auth.Hash(o.Join.Token.Secret)}
	if !o.Join.Token.Pin.IsZero() {
		is.Server = "https://" + o.Join.Address()
	}
	before, err := OpenCredentials(o.StateDir)
	switch {
	case err == nil && before.joined.Token == is.Token:
		return before, nil
	case err == nil:
		o.ID = cmp.Or(o.ID, before.joined.ID)
		o.Logger.Info("the node joins anew, by another token", "node", o.ID)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if is.ID, err = o.name(); err != nil {
		return nil, err
	}
	key, err := nodeKey(o.StateDir)
	if err != nil {
		return nil, err
	}
	return o.joinBy(ctx, is, key)
}

// name is what the node is to be called.
func (o JoinOptions) name() (muster.NodeID, error) {
	if o.ID != "" {
		return o.ID, nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return "", muster.InvalidField("id", "the hostname cannot be read (%v): name the node with --id", err)
	}
	return muster.NodeID(hostname), nil
}

// nodeKey reads the node's private key, or makes it. It is on disk before anybody hears
// of it.
func nodeKey(dir string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(dir, nodeKeyFile)
	text, err := keyfile.Read(path)
	if err == nil {
		key, err := auth.DecodeKey(text)
		if err != nil {
			return nil, muster.Errorf(muster.Invalid, "%s cannot be used: %w; remove it, and the node joins with a new one", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	key, err := auth.NewKey()
	if err != nil {
		return nil, fmt.Errorf("make the node's private key: %w", err)
	}
	if text, err = auth.EncodeKey(key); err != nil {
		return nil, err
	}
	return key, keyfile.Write(path, text)
}

// joinBy asks until there is an answer, and keeps it.
func (o JoinOptions) joinBy(ctx context.Context, is joined, key *ecdsa.PrivateKey) (*Credentials, error) {
	csr, err := auth.NewRequest(key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	p := newPauses(nil)
	for {
		answer, err := o.ask(ctx, is, csr)
		if err == nil {
			is.UID = answer.NodeUID
			return o.keep(is, key, answer)
		}
		if code := muster.CodeOf(err); ctx.Err() != nil || code != muster.Unavailable && code != muster.Limit {
			return nil, err
		}
		pause := p.next(10 * time.Second)
		o.Logger.Warn("the node has not joined yet", "node", is.ID, "err", err, "again_in", pause)
		if !sleep(ctx, pause, nil) {
			return nil, err
		}
	}
}

// ask makes one try. The token is presented only where the pin says that it is from, and
// only when the clocks agree: the first question, for the time, carries nothing.
func (o JoinOptions) ask(ctx context.Context, is joined, csr string) (*muster.Joined, error) {
	token := o.Join.Token
	clock, err := o.client(is.Server, auth.Trust{Pin: token.Pin, AnyTime: true}, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = clock.Close() }()
	at, err := clock.ServerTime(ctx)
	if err != nil {
		return nil, err
	}
	if err := compareClocks(time.Now(), at); err != nil {
		return nil, err
	}
	api, err := o.client(is.Server, auth.Trust{Pin: token.Pin}, token.Text())
	if err != nil {
		return nil, err
	}
	defer func() { _ = api.Close() }()
	return api.JoinNode(ctx, muster.JoinNodeInput{NodeID: is.ID, CSR: csr})
}

func (o JoinOptions) client(server string, trust auth.Trust, key string) (*client.Client, error) {
	options := client.Options{URL: server, Key: key, UserAgent: o.UserAgent, Transport: o.Transport}
	if !trust.Pin.IsZero() {
		options.Trust = func() auth.Trust { return trust }
	}
	return client.New(options)
}

// compareClocks refuses to join when certificates would seem expired, or not yet valid.
func compareClocks(here, there time.Time) error {
	off := here.Sub(there)
	which := "ahead of"
	if off < 0 {
		off, which = -off, "behind"
	}
	if off <= maxSkew {
		return nil
	}
	return muster.Errorf(muster.Invalid,
		"the clock of this machine (%s) is %s %s the server's (%s): set both by the network, with timedatectl set-ntp true for instance, then join again",
		here.UTC().Format(time.RFC3339), off.Round(time.Second), which, there.UTC().Format(time.RFC3339))
}

// keep writes what the server answered. The file that says so comes last.
func (o JoinOptions) keep(is joined, key *ecdsa.PrivateKey, answer *muster.Joined) (*Credentials, error) {
	c := &Credentials{dir: o.StateDir, joined: is, key: key}
	access, err := auth.ParseKey(answer.Key)
	if err != nil {
		return nil, muster.Errorf(muster.Internal, "the server let the node in and gave it no key that can be read: see its log")
	}
	c.access = access.Text()
	if c.Secure() {
		if err := c.keep(muster.Certificates{Certificate: answer.Certificate, CA: answer.CA}); err != nil {
			return nil, fmt.Errorf("keep the node's certificate: %w", err)
		}
	}
	if err := keyfile.Write(filepath.Join(c.dir, accessKeyFile), []byte(c.access+"\n")); err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(is, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("remember the joining: %w", err)
	}
	if err := keyfile.Write(filepath.Join(c.dir, joinedFile), append(text, '\n')); err != nil {
		return nil, err
	}
	o.Logger.Info("the node has joined", "node", is.ID, "uid", is.UID, "server", is.Server)
	return c, nil
}
