package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/graph/transport/audit"
)

// post sends a GraphQL request as it is and returns the answer's status and body.
func (s *server) post(body string) (int, string) {
	s.t.Helper()
	response, err := http.Post(s.url+"/graphql", "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

// TestServer_RefusesBombs sends each bomb over HTTP and over WebSocket: it is
// refused by its limit, nothing is executed, and the server answers on.
func TestServer_RefusesBombs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.start()
	for _, b := range audit.Bombs() {
		t.Run(b.Name, func(t *testing.T) {
			before := s.metrics()
			want := fmt.Sprintf(`"limit":%q`, b.Limit)
			if _, body := s.post(b.Body); !strings.Contains(body, want) || !strings.Contains(body, `"code":"LIMIT"`) {
				t.Errorf("over HTTP it got %.300s, want %s", body, want)
			}
			if got := s.detonate(t, b); !strings.Contains(got, want) {
				t.Errorf("over WebSocket it got %.300s, want %s", got, want)
			}
			after := s.until("both were counted", func(n numbers) bool {
				return n["muster_transport_refused_total"]-before["muster_transport_refused_total"] == 2
			})
			for _, name := range []string{"muster_transport_operations_total", "muster_transport_internal_total"} {
				if after[name] != before[name] {
					t.Errorf("%s rose", name)
				}
			}
			if status, body := s.post(`{"query":"{ serverInfo { revision } }"}`); status != http.StatusOK || body != `{"data":{"serverInfo":{"revision":0}}}` {
				t.Errorf("afterwards it answers %d %.300s", status, body)
			}
		})
	}
}

// detonate sends a bomb over WebSocket and returns what comes back: an error of
// the operation, or a close frame that says that the message is too large.
func (s *server) detonate(t *testing.T, b audit.Bomb) string {
	t.Helper()
	w, err := dialWire(t.Context(), strings.TrimPrefix(s.url, "http://"), 0)
	if err == nil {
		defer w.ws.Close()
		err = w.initialise()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = w.send("subscribe", "b", json.RawMessage(b.Body)) // it may be closed in the middle
	m, err := w.receive()
	var closed *websocket.CloseError
	switch {
	case errors.As(err, &closed) && closed.Code == websocket.CloseMessageTooBig:
		return `"limit":"body"`
	case err != nil:
		return err.Error()
	case m.Type != "error" || m.ID != "b":
		return "a " + m.Type + " " + string(m.Payload)
	}
	if err := w.send("ping", "", nil); err != nil {
		return err.Error()
	}
	if next, err := w.receive(); err != nil || next.Type != "pong" {
		return fmt.Sprintf("afterwards: %v, %s", err, next.Type)
	}
	return string(m.Payload)
}

// TestServer_RefusesWebSocketsBeyondItsLimit answers clearly, and lets one in again
// when one has left.
func TestServer_RefusesWebSocketsBeyondItsLimit(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--max-websockets", "2")
	s.start()
	address := strings.TrimPrefix(s.url, "http://")
	var wires []*wire
	for range 2 {
		w, err := dialWire(t.Context(), address, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.ws.Close()
		wires = append(wires, w)
	}
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	_, response, err := dialer.DialContext(t.Context(), "ws://"+address+"/graphql", nil)
	if !errors.Is(err, websocket.ErrBadHandshake) {
		t.Fatalf("the third got %v", err)
	}
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" ||
		!bytes.Contains(body, []byte(`"limit":"connections"`)) || !bytes.Contains(body, []byte("its 2 connections")) {
		t.Errorf("the third got %s %v %s", response.Status, response.Header, body)
	}
	_ = wires[0].ws.Close()
	s.until("one has left", func(n numbers) bool { return n["muster_transport_connections"] == 1 })
	if w, err := dialWire(t.Context(), address, 0); err != nil {
		t.Errorf("in its place: %v", err)
	} else {
		_ = w.ws.Close()
	}
}

const upgradeText = "GET /graphql HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: graphql-transport-ws\r\n\r\n"

// helloFrame is connection_init in a masked frame whose mask is zero.
func helloFrame() string {
	text := `{"type":"connection_init"}`
	return "\x81" + string([]byte{0x80 | byte(len(text))}) + "\x00\x00\x00\x00" + text
}

// TestServer_OutlivesAbandonedConnections opens 5,000 connections that come to
// nothing, half of which their clients leave at once: the others are served
// meanwhile, and afterwards everything is as it was.
func TestServer_OutlivesAbandonedConnections(t *testing.T) {
	t.Parallel()
	const each = 1250
	s := newServer(t, "--ping-interval", "1s", "--registration-publish", "noop")
	s.start()
	api := s.client()
	if _, err := api.ServerInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
	base, files := s.metrics(), s.files()
	address := strings.TrimPrefix(s.url, "http://")
	for _, first := range []string{
		"",                                      // silent
		"POST /graphql HTTP/1.1\r\nHost: local", // stops in the middle of the headers
		upgradeText,                             // never says hello
		upgradeText + helloFrame(),              // answers no pings
	} {
		for k := range each {
			s.abandon(address, first, k%2 == 0)
		}
		if _, err := api.ServerInfo(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.settle(base)
	s.until("the files are closed", func(numbers) bool { return s.files() <= files })
	if n := s.metrics(); n["muster_server_connections_refused_total"] != 0 || n["muster_transport_streams"] != 0 {
		t.Errorf("%v connections were refused, %v streams are left", n["muster_server_connections_refused_total"], n["muster_transport_streams"])
	}
}

// abandon connects and says a few first words; it leaves, or stays until the test ends.
func (s *server) abandon(address, words string, leave bool) {
	s.t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, words); err != nil {
		s.t.Fatal(err)
	}
	if leave {
		_ = conn.Close()
		return
	}
	s.t.Cleanup(func() { _ = conn.Close() })
}

// files is how many file descriptors the server has open.
func (s *server) files() int {
	s.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.process.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(entries)
}

// TestServer_LargeBodiesThatTrickle take all the places for large bodies, over HTTP
// and WebSocket, and give them back to an agent that means it.
func TestServer_LargeBodiesThatTrickle(t *testing.T) {
	t.Parallel()
	s := newServer(t, "--unhealthy-after", "1h", "--prune-after", "2h")
	s.start()
	address := strings.TrimPrefix(s.url, "http://")
	for range 8 {
		s.abandon(address, "POST /graphql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"+strings.Repeat(" ", 70<<10), false)
		w, err := dialWire(t.Context(), address, 0)
		if err == nil {
			err = w.initialise()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer w.ws.Close()
		part, err := w.ws.NextWriter(websocket.TextMessage)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(part, strings.Repeat(" ", 80<<10)); err != nil {
			t.Fatal(err)
		}
	}
	s.until("they have all the places", func(n numbers) bool { return n["muster_transport_large_bodies"] == 16 })
	patient, err := client.New(client.Options{URL: s.url, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer patient.Close()
	input := crashNode(1)
	for k := range 1000 {
		input.Instances = append(input.Instances, muster.InstanceReportInput{
			Machine: fmt.Sprintf("elsewhere-i-%d-1", k+1), Epoch: "elsewhere", ID: muster.InstanceIDOf(int64(k + 1)), Generation: 1, Status: muster.Running,
		})
	}
	if _, err := patient.RegisterNode(t.Context(), input); err != nil {
		t.Fatal(err)
	}
	s.until("all places are free", func(n numbers) bool { return n["muster_transport_large_bodies"] == 0 })
}
