package registry_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/auth"
	"github.com/muster-cloud/muster/registry/store"
)

// machine is one that joins: it keeps its private key over its attempts.
type machine struct {
	key *ecdsa.PrivateKey
	csr string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	key, err := auth.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := auth.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	return machine{key, csr}
}

// token makes a join token and returns its text.
func (w *world) token(t *testing.T, in muster.CreateJoinTokenInput) (*muster.JoinToken, string) {
	t.Helper()
	token, text, _, err := w.CreateJoinToken(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	return token, text
}

// joins has a machine join by a token's text.
func (w *world) joins(text string, m machine, id muster.NodeID) (*muster.Joined, error) {
	p, err := w.Authenticate(text, "192.0.2.9")
	if err != nil {
		return nil, err
	}
	return w.JoinNode(muster.WithPrincipal(context.Background(), p), muster.JoinNodeInput{NodeID: id, CSR: m.csr})
}

// joined is joins for a machine that has to get in.
func (w *world) joined(t *testing.T, text string, m machine, id muster.NodeID) *muster.Joined {
	t.Helper()
	j, err := w.joins(text, m, id)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// registers has a machine that joined register.
func (w *world) registers(t *testing.T, j *muster.Joined, in muster.RegisterNodeInput) (*registry.Registered, error) {
	t.Helper()
	return w.RegisterNode(w.holder(t, j.Key), in)
}

// certificates issues texts that name whom they are for.
type certificates struct{ failing error }

func (c *certificates) Issue(csr string, node muster.NodeUID) (string, string, error) {
	if c.failing != nil {
		return "", "", c.failing
	}
	_, err := auth.ParseRequest(csr)
	return "certificate of " + string(node), "ca", err
}

func (c *certificates) Pin() auth.Pin { return auth.Pin{1} }

func (c *certificates) Authorities() []*muster.CertificateAuthority {
	return []*muster.CertificateAuthority{{Pin: c.Pin().String(), Issues: true}}
}

func (c *certificates) Rotate(string) error { return c.failing }

func TestJoin_GivesAUIDAKeyAndACertificate(t *testing.T) {
	w := open(t, setup{certs: &certificates{}})
	token, text := w.token(t, muster.CreateJoinTokenInput{Role: muster.ServiceRole, Labels: muster.Map{"zone": "a", "rack": "7"}})
	if parsed, err := auth.ParseJoinToken(text); err != nil || parsed.Pin != (auth.Pin{1}) {
		t.Errorf("the token pins %v, %v", parsed.Pin, err)
	}
	j := w.joined(t, text, newMachine(t), "n1")
	if j.Certificate != "certificate of "+string(j.NodeUID) || j.CA != "ca" || j.NodeUID == "" {
		t.Errorf("joined: %+v", j)
	}
	p := muster.PrincipalOf(w.holder(t, j.Key))
	if p.Role != muster.NodeAgent || p.NodeUID != j.NodeUID || fmt.Sprint(p.Scope.Nodes) != "[n1]" {
		t.Errorf("its key: %+v", p)
	}
	in := nodeInput("n1", 4, 4096)
	in.Labels = muster.Map{"zone": "b", "disk": "ssd"}
	out, err := w.registers(t, j, in)
	if err != nil || out.Node.UID != j.NodeUID || out.Node.Role != muster.ServiceRole {
		t.Fatalf("%+v, %v", out, err)
	}
	if fmt.Sprint(out.Node.Labels) != fmt.Sprint(muster.Map{"zone": "a", "rack": "7", "disk": "ssd"}) {
		t.Errorf("labels: %v", out.Node.Labels)
	}
	used := w.View().Token(token.ID)
	if used.Left() != 0 || used.Used[0].NodeID != "n1" || used.Used[0].Addr != "192.0.2.9" || used.Used[0].Key != p.Key {
		t.Errorf("the token: %+v", used)
	}
	in.Incarnation, in.Role = 2, muster.Compute // a restart that says otherwise
	if out, err := w.registers(t, j, in); err != nil || out.Node.Role != muster.ServiceRole || out.Node.Labels["zone"] != "a" {
		t.Errorf("registered again: %+v, %v", out, err)
	}
}

func TestJoin_OnceAndByOneAtATime(t *testing.T) {
	w := open(t, setup{})
	_, text := w.token(t, muster.CreateJoinTokenInput{})
	const machines = 8
	won, errs := make([]*muster.Joined, machines), make([]error, machines)
	var wait sync.WaitGroup
	for k := range machines {
		m := newMachine(t)
		wait.Go(func() { won[k], errs[k] = w.joins(text, m, muster.NodeID(fmt.Sprintf("n%d", k))) })
	}
	wait.Wait()
	winners := 0
	for k, err := range errs {
		if err == nil {
			winners++
			continue
		}
		wantCode(t, err, muster.Forbidden)
		if won[k] != nil || !strings.Contains(err.Error(), "has been used by n") || !strings.Contains(err.Error(), "muster token create") {
			t.Errorf("loser %d: %v", k, err)
		}
	}
	keys := 0
	for range w.View().Keys() {
		keys++
	}
	if winners != 1 || keys != 1 {
		t.Errorf("%d of %d machines got in, there are %d keys", winners, machines, keys)
	}
}

func TestJoin_TheSameMachineAgain(t *testing.T) {
	w := open(t, setup{})
	token, text := w.token(t, muster.CreateJoinTokenInput{Uses: new(2)})
	m := newMachine(t)
	first := w.joined(t, text, m, "n1")
	again := w.joined(t, text, m, "n1") // the answer got lost
	if again.NodeUID != first.NodeUID || again.Key == first.Key {
		t.Errorf("uid %s and then %s", first.NodeUID, again.NodeUID)
	}
	wantCode(t, opens(w, first.Key), muster.Unauthenticated)
	if used := w.View().Token(token.ID); used.Left() != 1 {
		t.Errorf("it has used the token %d times", len(used.Used))
	}
	_, err := w.joins(text, m, "n2") // by another name
	wantCode(t, err, muster.Conflict)
	if !strings.Contains(err.Error(), "--id n1") || !strings.Contains(err.Error(), "muster node forget n1") {
		t.Error(err)
	}
	if _, err := w.registers(t, again, nodeInput("n1", 4, 4096)); err != nil {
		t.Error(err)
	}
	w.joined(t, text, newMachine(t), "n2")
	// Used up: the machines that are in may still ask again, others may not.
	if last := w.joined(t, text, m, "n1"); last.NodeUID != first.NodeUID {
		t.Errorf("uid %s", last.NodeUID)
	}
	_, err = w.joins(text, newMachine(t), "n3")
	wantCode(t, err, muster.Forbidden)
}

func TestJoin_AnswerLostWithTheCommitOrTheCertificate(t *testing.T) {
	var point store.Point
	certs := &certificates{}
	w := open(t, setup{certs: certs, fault: func(p store.Point) error {
		if p == point {
			point = ""
			return errors.New("the disk is gone")
		}
		return nil
	}})
	_, text := w.token(t, muster.CreateJoinTokenInput{})
	m := newMachine(t)
	for _, at := range []store.Point{store.BeforeCommit, store.DuringCommit} {
		point = at
		if _, err := w.joins(text, m, "n1"); err == nil {
			t.Fatalf("%s: it joined", at)
		}
	}
	eventually(t, "the state is loaded", func() bool { return w.Ready() == nil })
	certs.failing = errors.New("no")
	if _, err := w.joins(text, m, "n1"); err == nil {
		t.Fatal("it joined without a certificate")
	}
	certs.failing = nil
	j := w.joined(t, text, m, "n1")
	if _, err := w.registers(t, j, nodeInput("n1", 4, 4096)); err != nil {
		t.Error(err)
	}
	_, err := w.joins(text, newMachine(t), "n2")
	wantCode(t, err, muster.Forbidden)
}

func TestJoin_TokensThatEnded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		_, short := w.token(t, muster.CreateJoinTokenInput{TTL: new(time.Minute)})
		revoked, text := w.token(t, muster.CreateJoinTokenInput{})
		waiting, err := w.Authenticate(short, "") // and keeps the connection open
		if err != nil || !w.Admitted(waiting) {
			t.Fatal(err)
		}
		if _, _, err := w.RevokeJoinToken(ctx, revoked.ID); err != nil {
			t.Fatal(err)
		}
		_, err = w.joins(text, newMachine(t), "n1")
		wantCode(t, err, muster.Unauthenticated)
		_, _, err = w.RevokeJoinToken(ctx, revoked.ID)
		wantCode(t, err, muster.NotFound)
		time.Sleep(time.Minute)
		_, err = w.joins(short, newMachine(t), "n1")
		wantCode(t, err, muster.Unauthenticated)
		if !strings.Contains(err.Error(), "expired at") {
			t.Error(err)
		}
		if w.Admitted(waiting) || !waiting.Expires.Equal(time.Now()) {
			t.Errorf("who presented it before is in until %v", waiting.Expires)
		}
		_, err = w.JoinNode(muster.WithPrincipal(ctx, waiting), muster.JoinNodeInput{NodeID: "n1", CSR: newMachine(t).csr})
		wantCode(t, err, muster.Unauthenticated)
	})
}

func TestJoin_RefusesInputs(t *testing.T) {
	w := open(t, setup{})
	token, text := w.token(t, muster.CreateJoinTokenInput{})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	fine := newMachine(t).csr
	for name, c := range map[string]struct{ id, csr, field string }{
		"no name":                     {"", fine, "nodeId"},
		"a name that is none":         {"a/b", fine, "nodeId"},
		"no request":                  {"n1", "", "csr"},
		"a request that is none":      {"n1", "hello", "csr"},
		"a request that is a book":    {"n1", strings.Repeat(fine, 20), "csr"},
		"a key that is no P-256":      {"n1", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})), "csr"},
		"a request that was tampered": {"n1", tampered(t, fine), "csr"},
	} {
		_, err := w.joins(text, machine{csr: c.csr}, muster.NodeID(c.id))
		if e, ok := errors.AsType[*muster.Error](err); !ok || e.Code != muster.Invalid || e.Field != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, in := range map[string]muster.CreateJoinTokenInput{
		"no time":      {TTL: new(time.Duration)},
		"a year":       {TTL: new(365 * 24 * time.Hour)},
		"no use":       {Uses: new(0)},
		"endless uses": {Uses: new(muster.MaxTokenUses + 1)},
		"a role":       {Role: "KING"},
		"a label":      {Labels: muster.Map{"": "a"}},
	} {
		_, _, _, err := w.CreateJoinToken(ctx, in)
		if muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := w.View().Token(token.ID).Left(); left != 1 {
		t.Errorf("%d uses are left", left)
	}
}

func tampered(t *testing.T, csr string) string {
	t.Helper()
	block, _ := pem.Decode([]byte(csr))
	block.Bytes[len(block.Bytes)-1] ^= 1
	return string(pem.EncodeToMemory(block))
}

// The name of every machine that could come back is taken, and the refusal says whose it
// is and what to run.
func TestJoin_NamesThatAreTaken(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, w *world) // somebody has the name n1
		says    []string
	}{
		"by a node that beats": {func(t *testing.T, w *world) {
			w.join(t, "n1", 4, 4096)
		}, []string{"127.0.0.1", time.Now().UTC().Format("2006-"), "muster node forget n1", "--id"}},
		"by a node that was removed": {func(t *testing.T, w *world) {
			w.join(t, "n1", 4, 4096)
			if _, _, err := w.RemoveNode(ctx, "n1"); err != nil {
				t.Fatal(err)
			}
		}, []string{"127.0.0.1", "muster node forget n1"}},
		"by a machine that joined and has not registered yet": {func(t *testing.T, w *world) {
			_, text := w.token(t, muster.CreateJoinTokenInput{})
			w.joined(t, text, newMachine(t), "n1")
		}, []string{"joined at", "muster node forget n1", "--id"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := open(t, setup{})
			c.prepare(t, w)
			_, text := w.token(t, muster.CreateJoinTokenInput{Uses: new(2)})
			m := newMachine(t)
			_, err := w.joins(text, m, "n1")
			wantCode(t, err, muster.AlreadyExists)
			for _, part := range c.says {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%v; want %q in it", err, part)
				}
			}
			w.joined(t, text, newMachine(t), "n2") // no use was spent
			if _, _, err := w.RemoveNode(ctx, "n1"); err != nil && muster.CodeOf(err) != muster.NotFound {
				t.Fatal(err)
			}
			if _, _, err := w.ForgetNode(ctx, "n1"); err != nil {
				t.Fatal(err)
			}
			j := w.joined(t, text, m, "n1")
			if out, err := w.registers(t, j, nodeInput("n1", 4, 4096)); err != nil || out.Node.UID != j.NodeUID {
				t.Errorf("after it was forgotten: %+v, %v", out, err)
			}
		})
	}
}

func TestForget_ClearsEveryTrace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		_, text := w.token(t, muster.CreateJoinTokenInput{Uses: new(2)})
		old := w.joined(t, text, newMachine(t), "n1")
		in := nodeInput("n1", 4, 4096)
		in.Volumes = []string{"data"}
		if _, err := w.registers(t, old, in); err != nil {
			t.Fatal(err)
		}
		i := w.launch(t, launch(muster.Nano))
		_, _, err := w.ForgetNode(ctx, "n1")
		wantCode(t, err, muster.Conflict) // it beats
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if w.Node("n1") != nil {
			t.Fatal("it is not pruned")
		}
		_, err = w.joins(text, newMachine(t), "n1")
		wantCode(t, err, muster.AlreadyExists) // the pruned one could come back
		wantStatus(t, w, i.ID, muster.Lost)
		if _, _, err := w.ForgetNode(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, w, i.ID, muster.Terminated)
		err = opens(w, old.Key)
		wantCode(t, err, muster.Unauthenticated)
		if !strings.Contains(err.Error(), "(node n1) was revoked: to let this machine in again, run muster token create ") {
			t.Errorf("who has the node's old key is told: %v", err)
		}
		if c, err := w.Seen(ctx).Volumes(nil, muster.PageInput{}); err != nil || c.TotalCount() != 0 {
			t.Errorf("%d volumes are left, %v", c.TotalCount(), err)
		}
		_, _, err = w.ForgetNode(ctx, "n1")
		wantCode(t, err, muster.NotFound)
		fresh := w.joined(t, text, newMachine(t), "n1")
		if _, err := w.registers(t, fresh, nodeInput("n1", 4, 4096)); err != nil || fresh.NodeUID == old.NodeUID {
			t.Errorf("uid %s, %v", fresh.NodeUID, err)
		}
		volume := launch(muster.Nano)
		volume.Volumes = []muster.VolumeMount{{Name: "data", Path: "/data"}}
		if _, _, err := w.LaunchInstance(ctx, volume); err != nil {
			t.Errorf("the forgotten node's volume is in the way: %v", err)
		}
	})
}

// A machine that is silent can be forgotten before it is pruned, with whatever it ran.
func TestForget_ASilentNodeWithInstances(t *testing.T) {
	bubble(t, func(t *testing.T, w *world, _ *ledger) {
		n := w.join(t, "n1", 4, 4096)
		running, provisioning := w.launch(t, launch(muster.Nano)), w.launch(t, launch(muster.Nano))
		w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{running.ID: muster.Running})
		time.Sleep(time.Minute)
		synctest.Wait()
		if s := w.Node("n1").Status; s != muster.Unhealthy {
			t.Fatal("it is", s)
		}
		if _, _, err := w.ForgetNode(ctx, "n1"); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, w, running.ID, muster.Terminated)
		wantStatus(t, w, provisioning.ID, muster.Terminated)
	})
}

// A node whose record was buried long ago still has its key: it comes back as itself, and
// forgetting its name ends that.
func TestForget_AlsoANodeThatWasBuried(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, setup{dir: dir, opts: registry.Options{Tombstone: time.Hour}})
		_, text := w.token(t, muster.CreateJoinTokenInput{Uses: new(2), TTL: new(24 * time.Hour)})
		old := w.joined(t, text, newMachine(t), "n1")
		if _, err := w.registers(t, old, nodeInput("n1", 4, 4096)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if w.View().NodeByUID(old.NodeUID) != nil {
			t.Fatal("it is not buried")
		}
		_, err := w.joins(text, newMachine(t), "n1")
		wantCode(t, err, muster.AlreadyExists)
		if n, _, err := w.ForgetNode(ctx, "n1"); err != nil || n != nil {
			t.Fatal(n, err)
		}
		wantCode(t, opens(w, old.Key), muster.Unauthenticated)
		w.joined(t, text, newMachine(t), "n1")
		w.stop()
	})
}

func TestRenewCertificate(t *testing.T) {
	w := open(t, setup{certs: &certificates{}})
	_, text := w.token(t, muster.CreateJoinTokenInput{})
	j := w.joined(t, text, newMachine(t), "n1")
	holder := w.holder(t, j.Key)
	csr := newMachine(t).csr
	if c, err := w.RenewCertificate(holder, csr); err != nil || c.Certificate != "certificate of "+string(j.NodeUID) {
		t.Errorf("%+v, %v", c, err)
	}
	_, err := w.RenewCertificate(holder, "hello")
	wantCode(t, err, muster.Invalid)
	_, err = w.RenewCertificate(holder, strings.Repeat("a", muster.MaxCSRBytes+1))
	wantCode(t, err, muster.Invalid)
	_, err = w.RenewCertificate(ctx, csr) // an ADMIN is no node
	wantCode(t, err, muster.Forbidden)
	if _, err := w.registers(t, j, nodeInput("n1", 4, 4096)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.RemoveNode(ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	_, err = w.RenewCertificate(holder, csr)
	wantCode(t, err, muster.Forbidden)

	plain := open(t, setup{})
	_, text = plain.token(t, muster.CreateJoinTokenInput{})
	_, err = plain.RenewCertificate(plain.holder(t, plain.joined(t, text, newMachine(t), "n1").Key), csr)
	wantCode(t, err, muster.Conflict)
}
