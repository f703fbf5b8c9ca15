package registration_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// configEnv has the configuration file of a NATS server of others, which a test runs as a process of its own.
const configEnv = "MUSTER_TEST_NATS_CONFIG"

// serveConfig runs the NATS server of a configuration file, which a SIGHUP has it read again, until it is
// killed, or nobody reads what it says any more.
func serveConfig(file string) {
	opts, err := natsserver.ProcessConfigFile(file)
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	s, err := natsserver.NewServer(opts)
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		fmt.Println("failed: it is not ready")
		os.Exit(1)
	}
	fmt.Println(s.Addr())
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// natsd is a NATS server as others run it, with a configuration file.
type natsd struct {
	*process
	dir    string
	addr   string
	domain string // of JetStream; "": none
}

// newNATSD makes a server that listens at a free address of its own; start starts it.
func newNATSD(t testing.TB) *natsd {
	t.Helper()
	return &natsd{dir: t.TempDir(), addr: freeAddress(t)}
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// configure writes its configuration: where it listens, its store, and what is given.
func (n *natsd) configure(t testing.TB, text string) string {
	t.Helper()
	file := filepath.Join(n.dir, "nats.conf")
	store := fmt.Sprintf("store_dir: %q, max_mem: 16MB, max_file: 256MB", n.dir)
	if n.domain != "" {
		store += fmt.Sprintf(", domain: %q", n.domain)
	}
	text = fmt.Sprintf("listen: %q\njetstream: {%s}\n%s\n", n.addr, store, text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (n *natsd) start(t testing.TB, text string) *natsd {
	t.Helper()
	n.process = spawnWith(t, configEnv+"="+n.configure(t, text))
	return n
}

// reconfigure has it read another configuration.
func (n *natsd) reconfigure(t testing.TB, text string) {
	t.Helper()
	n.configure(t, text)
	if err := n.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// natsCluster are NATS servers that are one cluster, some of which run.
type natsCluster struct {
	members []*natsd
	configs []string
}

func newNATSCluster(t testing.TB, size int) *natsCluster {
	t.Helper()
	c := &natsCluster{}
	var at []string
	for range size {
		c.members = append(c.members, newNATSD(t))
		at = append(at, freeAddress(t))
	}
	for i, listen := range at {
		var routes []string // to the others
		for k, other := range at {
			if k != i {
				routes = append(routes, fmt.Sprintf("%q", "nats-route://"+other))
			}
		}
		c.configs = append(c.configs, fmt.Sprintf("server_name: n%d\ncluster: {name: test, listen: %q, routes: [%s]}", i, listen, strings.Join(routes, ", ")))
	}
	return c
}

func (c *natsCluster) start(t testing.TB, members ...int) {
	t.Helper()
	for _, i := range members {
		c.members[i].start(t, c.configs[i])
	}
}

func (c *natsCluster) url() string {
	var urls []string
	for _, m := range c.members {
		urls = append(urls, "nats://"+m.addr)
	}
	return strings.Join(urls, ",")
}

// admin is a connection of somebody who looks after the cluster.
func (c *natsCluster) admin(t testing.TB) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(c.url(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	return js
}
