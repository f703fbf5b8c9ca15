package client_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/muster-cloud/muster/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pipes is a network in memory, so that a test's clock can be a fake one.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9000} }

func (p *pipes) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serve runs a handler until the test ends and returns a client of it.
func serve(t *testing.T, handler http.Handler, o client.Options) *client.Client {
	t.Helper()
	network := newPipes()
	server := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(network)
	}()
	o.Transport = &http.Transport{DialContext: network.DialContext}
	if o.URL == "" {
		o.URL = "http://muster.test"
	}
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		<-done
	})
	return c
}
