package transport_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster/graph/transport"
)

const reporting = `mutation($input: ReportInstancesInput!) { reportInstances(input: $input) { revision } }`

// largeReport is a request of an agent that needs a token to be read.
func largeReport() string {
	b, _ := json.Marshal(map[string]any{"query": reporting, "variables": map[string]any{"input": map[string]any{
		"uid": "u", "incarnation": 1, "sequence": 1, "epoch": epoch, "appliedRevision": 1, "instances": []any{
			map[string]any{"machine": strings.Repeat("m", 100<<10), "epoch": epoch, "id": "i-1", "generation": 1, "status": "RUNNING"},
		},
	}}})
	return string(b)
}

// trickle posts the beginning of a large body and returns the connection.
func (f *fixture) trickle() net.Conn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.server.Listener.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	body := largeReport()
	_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:70<<10])
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

func answerOn(t *testing.T, conn net.Conn) (int, string) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func TestBody_ATrickleOverHTTPHoldsNobodyUp(t *testing.T) {
	f := newFixture(t, transport.Options{BodyTime: 300 * time.Millisecond, Limits: transport.Limits{AgentBodies: 1}})
	slow := f.trickle()
	if _, body := f.exchange(http.MethodPost, "/", largeReport(), nil); body != `{"data":{"reportInstances":{"revision":1}}}` {
		t.Errorf("the next one got %.200s", body)
	}
	if status, body := answerOn(t, slow); status != http.StatusRequestTimeout || !strings.Contains(body, "came too slowly") {
		t.Errorf("it got %d %s", status, body)
	}
}

func TestBody_TooManyAtOnce(t *testing.T) {
	f := newFixture(t, transport.Options{OperationTime: 300 * time.Millisecond, Limits: transport.Limits{AgentBodies: 1}})
	first, second := f.trickle(), f.trickle()
	done := make(chan string, 2)
	for _, conn := range []net.Conn{first, second} { // which one has the token is not known
		go func() {
			b, _ := bufio.NewReader(conn).ReadString('\n')
			done <- b
		}()
	}
	if got := <-done; !strings.Contains(got, "503") {
		t.Errorf("the one that waited got %q", got)
	}
	if got := f.handler.Stats().Refused; got != 1 {
		t.Errorf("%d were refused", got)
	}
	_ = first.Close()
	_ = second.Close()
	<-done
}

// TestBody_ATrickleOverWebSocket answers pings and sends a little now and then,
// and still may not take its time.
func TestBody_ATrickleOverWebSocket(t *testing.T) {
	f := newFixture(t, transport.Options{BodyTime: 500 * time.Millisecond, Ping: time.Second, Limits: transport.Limits{AgentBodies: 1}})
	slow := f.connect()
	w, err := slow.ws.NextWriter(websocket.TextMessage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, strings.Repeat(" ", 80<<10)); err != nil {
		t.Fatal(err)
	}
	pace, done := time.NewTicker(10*time.Millisecond), make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		defer pace.Stop()
		for range 400 {
			if _, err := io.WriteString(w, strings.Repeat(" ", 2<<10)); err != nil {
				return
			}
			<-pace.C
		}
	}()
	slow.expect("close 1013 Too slow")
	c := f.connect()
	payload := largeReport()
	c.send(`{"id":"r","type":"subscribe","payload":` + payload + `}`)
	c.expect(`{"id":"r","type":"next","payload":{"data":{"reportInstances":{"revision":1}}}}`)
}

func TestBody_StrangersGetNoLargeOnes(t *testing.T) {
	f := newFixture(t, transport.Options{})
	c := f.dial()
	c.send(`{"type":"connection_init","payload":{"x":"` + strings.Repeat("x", 70<<10) + `"}}`)
	c.expect("close 1009")
	within(t, 10*time.Second, "it is counted", func() bool { return f.handler.Stats().Refused == 1 })
}
