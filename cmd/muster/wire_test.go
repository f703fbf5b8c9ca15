package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"

	"github.com/gorilla/websocket"
)

// wire is a connection that speaks graphql-transport-ws by hand, independent of
// package client.
type wire struct{ ws *websocket.Conn }

// message is any message of the protocol.
type message struct {
	ID      string          `json:"id,omitempty"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// dialWire connects, without an init. A buffer above 0 is how many bytes the kernel
// keeps for a reader that takes its time.
func dialWire(ctx context.Context, address string, buffer int) (*wire, error) {
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, HandshakeTimeout: 10 * time.Second, ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10}
	if buffer > 0 {
		dialer.NetDial = func(network, address string) (net.Conn, error) {
			conn, err := net.Dial(network, address)
			if err == nil {
				err = conn.(*net.TCPConn).SetReadBuffer(buffer)
			}
			return conn, err
		}
	}
	ws, response, err := dialer.DialContext(ctx, "ws://"+address+"/graphql", nil)
	if err != nil {
		return nil, err
	}
	_ = response.Body.Close()
	return &wire{ws}, nil
}

// initialise says hello and waits for the acknowledgement.
func (w *wire) initialise() error {
	if err := w.send("connection_init", "", nil); err != nil {
		return err
	}
	m, err := w.receive()
	if err == nil && m.Type != "connection_ack" {
		return fmt.Errorf("a %s instead of the acknowledgement", m.Type)
	}
	return err
}

// send sends a message; a nil payload is none.
func (w *wire) send(kind, id string, payload any) error {
	m := message{ID: id, Type: kind}
	if payload != nil {
		b, err := json.Marshal(payload)
		if err != nil {
			return err
		}
		m.Payload = b
	}
	return w.ws.WriteJSON(m)
}

// subscribe starts an operation.
func (w *wire) subscribe(id, query string, variables map[string]any) error {
	return w.send("subscribe", id, map[string]any{"query": query, "variables": variables})
}

func (w *wire) receive() (m message, err error) {
	_ = w.ws.SetReadDeadline(time.Now().Add(45 * time.Second)) // the server pings each 20 s
	return m, w.ws.ReadJSON(&m)
}
