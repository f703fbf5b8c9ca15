package agent_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/keyfile"
	"github.com/muster-cloud/muster/registry/auth"
)

// issuer is a cloud that renews certificates.
type issuer struct {
	*cloud
	t   *testing.T
	ca  *auth.CA
	key auth.Pin // of the node

	mu   sync.Mutex
	at   []time.Time // when it was asked
	fail error
}

func (i *issuer) asked() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.at)
}

// set makes it issue by an authority, or fail.
func (i *issuer) set(ca *auth.CA, fail error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ca, i.fail = ca, fail
}

func (i *issuer) RenewCertificate(_ context.Context, csr string) (*muster.Certificates, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.at = append(i.at, time.Now())
	if i.fail != nil {
		return nil, i.fail
	}
	public, err := auth.ParseRequest(csr)
	if err != nil {
		return nil, err
	}
	if pin, err := auth.PinOfKey(public); err != nil || pin != i.key {
		i.t.Errorf("the request is of another key: %v", err)
	}
	leaf, err := i.ca.Issue(auth.Wish{Public: public, Identity: auth.NodeIdentity(clusterUID, "n-1")}, time.Now())
	if err != nil {
		return nil, err
	}
	return &muster.Certificates{
		Certificate: string(auth.EncodeBundle([]*x509.Certificate{leaf})), CA: string(auth.EncodeBundle(i.ca.Roots())),
	}, nil
}

// joinedNode writes what a node has that has just joined.
func joinedNode(t *testing.T, dir string, ca *auth.CA) (*agent.Credentials, auth.Pin) {
	t.Helper()
	return joinedNodeAt(t, dir, ca, time.Now())
}

func joinedNodeAt(t *testing.T, dir string, ca *auth.CA, at time.Time) (*agent.Credentials, auth.Pin) {
	t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(auth.Wish{Public: key.Public(), Identity: auth.NodeIdentity(clusterUID, "n-1")}, at)
	if err != nil {
		t.Fatal(err)
	}
	private, err := auth.EncodeKey(key)
	if err != nil {
		t.Fatal(err)
	}
	is, err := json.Marshal(map[string]string{"server": "https://registry.example:9000", "token": "none", "uid": "n-1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"node.key": private, "node.crt": auth.EncodeBundle([]*x509.Certificate{leaf}), "ca.crt": auth.EncodeBundle(ca.Roots()),
		"access.key": []byte(auth.Key{ID: "k-1", Secret: auth.NewSecret()}.Text()), "joined.json": is,
	} {
		if err := keyfile.Write(filepath.Join(dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	c, err := agent.OpenCredentials(dir)
	if err != nil {
		t.Fatal(err)
	}
	return c, auth.PinOf(leaf)
}

func TestAgent_RenewsItsCertificate(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		const day = 24 * time.Hour
		w.cloud.interval = time.Hour // twenty days of beats
		ca := newCA(t, time.Now())
		i := &issuer{cloud: w.cloud, t: t, ca: ca}
		w.registry = i
		w.credentials, i.key = joinedNode(t, w.dir, ca)
		w.start()
		if in := w.cloud.registrations(); len(in) != 1 || !in[0].Secure {
			t.Errorf("it registered as %+v", in)
		}
		pass(19*day + 20*time.Hour)
		if n := i.asked(); n != 0 {
			t.Errorf("it was renewed %d times before two thirds of its life", n)
		}
		i.set(ca, muster.Errorf(muster.Unavailable, "not now"))
		pass(day)
		tries := i.asked()
		if tries < 20 || tries > 60 {
			t.Errorf("%d tries in a day", tries)
		}
		next, err := ca.Rotate(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		i.set(next, nil)
		pass(2 * time.Hour)
		if n := i.asked() - tries; n != 1 {
			t.Errorf("it was renewed %d times", n)
		}
		if roots := len(w.credentials.Trust().Roots); roots != 2 {
			t.Errorf("it trusts %d authorities", roots)
		}
		again, err := agent.OpenCredentials(w.dir)
		if err != nil || len(again.Trust().Roots) != 2 {
			t.Errorf("after a restart it trusts others: %v", err)
		}
		pass(15 * day)
		if n := i.asked() - tries; n != 1 {
			t.Errorf("the new one was renewed %d times too early", n-1)
		}
		pass(6 * day)
		if n := i.asked() - tries; n != 2 {
			t.Errorf("the new one was renewed %d times", n-1)
		}
	})
}

// A server whose clock was wrong issues what is not valid yet.
func TestAgent_RenewsWhatIsNotValidYet(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.cloud.interval = time.Hour
		ca := newCA(t, time.Now())
		i := &issuer{cloud: w.cloud, t: t, ca: ca}
		w.registry = i
		w.credentials, i.key = joinedNodeAt(t, w.dir, ca, time.Now().AddDate(1, 0, 0))
		w.start()
		if n := i.asked(); n != 1 {
			t.Errorf("it was renewed %d times", n)
		}
		pass(10 * 24 * time.Hour)
		if n := i.asked(); n != 1 {
			t.Errorf("it was renewed %d times too often", n-1)
		}
	})
}

// A certificate that the server should not have issued is not used.
func TestAgent_KeepsItsCertificateRatherThanAForeignOne(t *testing.T) {
	play(t, func(t *testing.T, w *world) {
		w.cloud.interval = time.Hour
		ca := newCA(t, time.Now())
		i := &issuer{cloud: w.cloud, t: t, ca: ca}
		w.registry = i
		w.credentials, i.key = joinedNode(t, w.dir, ca)
		foreign, err := auth.NewCA("other", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(filepath.Join(w.dir, "node.crt"))
		if err != nil {
			t.Fatal(err)
		}
		w.registry = foreigner{i, foreign}
		w.start()
		pass(21 * 24 * time.Hour)
		after, err := os.ReadFile(filepath.Join(w.dir, "node.crt"))
		if err != nil || string(after) != string(before) || w.credentials.Trust().ClusterUID() != clusterUID {
			t.Errorf("it took a certificate of another cluster: %v", err)
		}
		if i.asked() == 0 {
			t.Error("it did not ask")
		}
	})
}

// foreigner answers with the authorities of another cluster.
type foreigner struct {
	*issuer
	other *auth.CA
}

func (f foreigner) RenewCertificate(ctx context.Context, csr string) (*muster.Certificates, error) {
	issued, err := f.issuer.RenewCertificate(ctx, csr)
	if err == nil {
		issued.CA = string(auth.EncodeBundle(f.other.Roots()))
	}
	return issued, err
}
