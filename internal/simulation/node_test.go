package simulation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver/drivertest"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/registry"
)

// node is a host with an agent that is started again whenever it ends.
type node struct {
	c      *cluster
	name   string
	host   *drivertest.Host
	link   *link
	dice   *dice
	driver *dice // of what the driver does
	jitter *dice // of the agent's pauses
	cpus   int
	memory int
	zone   string
	joins  time.Duration // after the cluster began
	clumsy atomic.Bool   // the driver fails now and then
	ports  *ports

	mu       sync.Mutex
	addr     string
	moves    int
	boots    int
	downtime time.Duration // after the next end of the agent
	agent    *process
}

// process is one run of an agent.
type process struct {
	*agent.Agent
	dead   atomic.Bool // killed: it does and says nothing any more
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

var errDead = errors.New("this agent was killed")

func (c *cluster) newNode(k int) *node {
	name := fmt.Sprintf("node-%d", k)
	d := newDice(c.seed, name)
	n := &node{
		c: c, name: name, host: drivertest.NewHost("minimal", "other"), ports: &ports{}, link: c.newLink(name), dice: d, driver: newDice(c.seed, name+"/driver"), jitter: newDice(c.seed, name+"/jitter"),
		cpus: d.within(1, 6), memory: d.within(256, 4096), zone: pick(d, []string{"a", "b"}), joins: d.span(0, c.plan.chaos/2), addr: fmt.Sprintf("192.0.2.%d", k),
	}
	n.host.OnLaunch(n.launching)
	return n
}

// launching takes its time, and sometimes fails. What was begun before the host
// went down does not come to run after it.
func (n *node) launching(ctx context.Context, spec driverSpec) error {
	boots, d := n.booted(), newDice(n.c.seed, fmt.Sprint(n.name, "/launch/", spec.Instance, "/", spec.Generation))
	if d.chance(0.3) && !sleep(ctx, d.span(0, 5*time.Second)) {
		return ctx.Err()
	}
	switch {
	case n.booted() != boots:
		return errors.New("the host went down")
	case n.clumsy.Load() && d.chance(0.2):
		return errors.New("no space left on device")
	}
	return nil
}

func (n *node) booted() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boots
}

func (n *node) bootID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bootIDLocked()
}

func (n *node) bootIDLocked() string { return fmt.Sprintf("%s-boot-%d", n.name, n.boots) }

func (n *node) at() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.addr
}

// quiet is a listener that nobody reaches: nudges come through the network.
type quiet struct {
	addr   string
	closed chan struct{}
	close  func()
}

func listener(addr string) net.Listener {
	closed := make(chan struct{})
	return quiet{addr, closed, sync.OnceFunc(func() { close(closed) })}
}

func (q quiet) Accept() (net.Conn, error) { <-q.closed; return nil, net.ErrClosed }
func (q quiet) Close() error              { q.close(); return nil }
func (q quiet) Addr() net.Addr            { return &net.TCPAddr{IP: net.ParseIP(q.addr), Port: 8080} }

// supervise keeps an agent running until the cluster ends.
func (n *node) supervise() {
	sleep(n.c.ctx, n.joins)
	for n.c.ctx.Err() == nil {
		p := n.begin()
		<-p.ended
		n.judgeEnd(p)
		n.mu.Lock()
		pause := max(n.downtime, time.Second)
		n.downtime = 0
		n.mu.Unlock()
		sleep(n.c.ctx, pause)
	}
}

func (n *node) begin() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &process{ended: make(chan struct{})}
	a, err := agent.New(agent.Options{
		Driver: &machines{Fake: drivertest.NewFake(n.host), n: n, p: p}, Registry: &caller{n: n, p: p},
		StateDir: filepath.Join(n.c.root, n.name), ID: muster.NodeID(n.name), BootID: n.bootIDLocked(),
		CPUs: n.cpus, MemoryMB: n.memory, Labels: muster.Map{"zone": n.zone}, Listener: listener(n.addr), Random: n.jitter.share,
		Logger: n.c.logger.With("on", n.name), Deploy: deploy.Options{Ports: n.ports},
	})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(n.c.ctx)
	p.Agent, p.cancel, n.agent = a, cancel, p
	go func() {
		defer close(p.ended)
		defer cancel()
		p.err = a.Run(ctx)
	}()
	return p
}

// judgeEnd says which ends of an agent are to be: when it was told, and when an
// operator removed the node.
func (n *node) judgeEnd(p *process) {
	switch muster.CodeOf(p.err) {
	case "":
	case muster.Forbidden:
		n.c.note("%s: the agent was sent away", n.name)
		n.later(10 * time.Second)
	default:
		n.c.fault("%s: the agent ended with %v", n.name, p.err)
		n.later(10 * time.Second)
	}
}

func (n *node) later(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.downtime = d
}

// crash ends the agent, by force or not, for a while.
func (n *node) crash(force bool, downtime time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.downtime = downtime
	if n.agent != nil {
		n.agent.dead.Store(force)
		n.agent.cancel()
	}
}

// reboot restarts the host.
func (n *node) reboot(downtime time.Duration) {
	n.crash(true, downtime)
	n.mu.Lock()
	n.boots++
	n.mu.Unlock()
	n.host.Restart()
}

// move gives the node another address, as DHCP may after a restart.
func (n *node) move(downtime time.Duration) {
	n.crash(false, downtime)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moves++
	n.addr = fmt.Sprintf("198.51.%d.%s", n.moves, n.addr[strings.LastIndexByte(n.addr, '.')+1:])
}

func (n *node) present() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.agent == nil {
		return nil
	}
	select {
	case <-n.agent.ended:
		return nil
	default:
		return n.agent
	}
}

func (n *node) ask(method, path string, body any) (*httptest.ResponseRecorder, error) {
	p := n.present()
	if p == nil || p.dead.Load() {
		return nil, unreachable("connection refused")
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	answer := httptest.NewRecorder()
	p.Handler().ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader(string(b))))
	return answer, nil
}

func (n *node) post(nudge registry.Nudge) (int, error) {
	answer, err := n.ask(http.MethodPost, "/instances/"+string(nudge.Instance)+"/provision", map[string]any{
		"instance": nudge.Instance, "desiredRevision": nudge.DesiredRevision, "incarnation": nudge.Incarnation,
	})
	if err != nil {
		return 0, err
	}
	return answer.Code, nil
}

func (n *node) identity() (muster.NodeUID, int64, error) {
	answer, err := n.ask(http.MethodGet, "/identity", nil)
	if err != nil {
		return "", 0, err
	}
	var who struct {
		UID         muster.NodeUID `json:"uid"`
		Incarnation int64          `json:"incarnation"`
	}
	err = json.Unmarshal(answer.Body.Bytes(), &who)
	return who.UID, who.Incarnation, err
}

// caller is the registry as one run of an agent reaches it.
type caller struct {
	n *node
	p *process
}

func overWire[T any](ctx context.Context, a *caller, kind string, do func(context.Context, *life) (T, error)) (T, error) {
	if a.p.dead.Load() {
		var none T
		return none, errDead
	}
	as := muster.Principal{Name: a.n.name, Role: muster.NodeAgent}
	return call(ctx, a.n.link, kind, func(ctx context.Context, l *life) (T, error) { return do(muster.WithPrincipal(ctx, as), l) })
}

func (a *caller) RegisterNode(ctx context.Context, input muster.RegisterNodeInput) (*client.Registration, error) {
	sent := copied[muster.RegisterNodeInput](input)
	return overWire(ctx, a, "register", func(ctx context.Context, l *life) (*client.Registration, error) {
		out, err := l.RegisterNode(ctx, copied[muster.RegisterNodeInput](sent))
		if err != nil {
			return nil, err
		}
		a.n.c.pulses.hear(out.Node.UID)
		a.n.c.book.name(a.n, out.Remove)
		info := l.ServerInfo()
		return &client.Registration{
			Node:   &client.Node{ID: out.Node.ID, UID: out.Node.UID, Incarnation: out.Node.Incarnation},
			Server: &client.ServerInfo{ClusterUID: info.ClusterUID, Epoch: info.Epoch, HeartbeatInterval: info.HeartbeatInterval},
			Remove: out.Remove, Revision: out.Revision,
		}, nil
	})
}

func (a *caller) Heartbeat(ctx context.Context, input muster.HeartbeatInput) (*muster.Beat, error) {
	return overWire(ctx, a, "beat", func(ctx context.Context, l *life) (*muster.Beat, error) {
		beat, err := l.Heartbeat(ctx, input)
		if err == nil {
			a.n.c.pulses.hear(input.UID)
		}
		return beat, err
	})
}

func (a *caller) Assignments(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Assignments, error) {
	return overWire(ctx, a, "fetch", func(_ context.Context, l *life) (*muster.Assignments, error) {
		out, err := l.Assignments(ctx, uid, incarnation)
		if err != nil {
			return nil, err
		}
		for _, w := range out.Instances {
			if w.Desired == muster.WantTerminated {
				a.n.c.book.name(a.n, []string{w.Machine})
			}
			for _, s := range w.Services {
				if s.Desired == muster.WantTerminated {
					a.n.c.book.nameService(a.n, s.ID)
				}
			}
		}
		return copied[*muster.Assignments](out), nil
	})
}

func (a *caller) Peers(ctx context.Context, uid muster.NodeUID, incarnation int64) (*muster.Peers, error) {
	return overWire(ctx, a, "peers", func(_ context.Context, l *life) (*muster.Peers, error) {
		return l.Peers(ctx, uid, incarnation)
	})
}

func (a *caller) ReportInstances(ctx context.Context, input muster.ReportInstancesInput) ([]string, error) {
	sent := copied[muster.ReportInstancesInput](input)
	return overWire(ctx, a, "report", func(ctx context.Context, l *life) ([]string, error) {
		remove, _, err := l.ReportInstances(ctx, copied[muster.ReportInstancesInput](sent))
		if err == nil {
			a.n.c.pulses.hear(input.UID)
			a.n.c.book.name(a.n, remove)
		}
		return remove, err
	})
}
