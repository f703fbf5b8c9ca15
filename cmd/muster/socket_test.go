package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// habits are how a client behaves.
type habits struct {
	pace     time.Duration // it rests before each message
	nap      time.Duration // it rests now and then, with the connection open
	absence  bool          // it stays away now and then, until the log no longer has what it missed
	cuts     bool          // its connection breaks off now and then
	forgets  bool          // it begins anew when that happens, as often as not
	churn    bool          // it completes a stream now and then and resumes it
	fromNow  bool          // it begins at now instead of with the present state
	moderate int           // "now and then" is about each so many messages
}

// socket is a client with its streams. It speaks graphql-transport-ws by hand.
type socket struct {
	t       *testing.T
	address string
	oracle  *oracle
	habits  habits
	random  *rand.Rand
	streams []*stream

	*wire     // the present connection
	next  int // the number of the next id
	byID  map[string]*stream
	codes func(code int)  // told of each close frame
	storm context.Context // ends with the changes
}

// errCut is the end of a connection that the client itself wanted.
var errCut = errors.New("cut by the client")

// run connects again and again until ctx ends.
func (k *socket) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := k.connect(ctx); err != nil {
			k.rest(ctx, 20*time.Millisecond) // the server is being killed, or starts
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = k.ws.Close() })
		err := k.serve(ctx)
		stop()
		_ = k.ws.Close()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			k.codes(closed.Code)
		}
		if errors.Is(err, errCut) && k.habits.absence {
			k.oracle.compacted(k.storm, k.streams[0].place())
		}
	}
}

// rest waits, which is what slow clients do.
func (k *socket) rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (k *socket) connect(ctx context.Context) error {
	buffer := 0
	if k.habits.pace > 0 || k.habits.nap > 0 {
		buffer = 4 << 10
	}
	w, err := dialWire(ctx, k.address, buffer)
	if err == nil {
		k.wire, k.byID = w, map[string]*stream{}
	}
	return err
}

// serve follows all streams on one connection until it breaks.
func (k *socket) serve(ctx context.Context) error {
	if err := k.initialise(); err != nil {
		return err
	}
	for _, s := range k.streams {
		if err := k.subscribe(s); err != nil {
			return err
		}
	}
	for {
		if k.habits.pace > 0 {
			k.rest(ctx, k.habits.pace)
		}
		m, err := k.receive()
		if err != nil {
			return err
		}
		if err := k.take(ctx, m); err != nil {
			return err
		}
		if err := k.misbehave(ctx); err != nil {
			return err
		}
	}
}

// subscribe begins or resumes a stream under a new id.
func (k *socket) subscribe(s *stream) error {
	k.next++
	id := fmt.Sprintf("s%d", k.next)
	k.byID[id] = s
	variables := map[string]any{"filter": s.watched.filter}
	if since := s.begin(k.habits.fromNow); since != "" {
		variables["since"] = since
	} else {
		variables["initial"] = !k.habits.fromNow
	}
	return k.wire.subscribe(id, s.watched.document(), variables)
}

// take handles what the server says.
func (k *socket) take(ctx context.Context, m message) error {
	s := k.byID[m.ID]
	switch {
	case m.Type == "pong" && m.ID == "":
	case s == nil:
		k.t.Errorf("a %s for %q, which is no stream: %.200s", m.Type, m.ID, m.Payload)
	case m.Type == "next":
		s.event(k.t, m.Payload)
	case m.Type == "error":
		delete(k.byID, m.ID)
		k.fail(ctx, s, m.Payload)
		return k.subscribe(s)
	default:
		k.t.Errorf("a %s of %s: %.200s", m.Type, s.watched, m.Payload)
	}
	return nil
}

// fail takes the error of a stream, which may only be that its cursor is below the floor.
func (k *socket) fail(ctx context.Context, s *stream, payload json.RawMessage) {
	var errs []struct {
		Message    string
		Extensions struct{ Code, Oldest string }
	}
	if err := json.Unmarshal(payload, &errs); err != nil || len(errs) != 1 || errs[0].Extensions.Code != "COMPACTED" {
		k.t.Errorf("%s ended with %s", s.watched, payload)
		return
	}
	at := s.restart()
	s.compacted++
	floor, err := k.oracle.floor(ctx)
	if ctx.Err() == nil && (err != nil || floor <= at || errs[0].Extensions.Oldest == "") {
		k.t.Errorf("%s at %d is told COMPACTED while the floor is %d (%v): %s", s.watched, at, floor, err, payload)
	}
}

// misbehave does what the client's habits are, now and then.
func (k *socket) misbehave(ctx context.Context) error {
	if k.habits.moderate == 0 || k.random.IntN(k.habits.moderate) != 0 {
		return nil
	}
	switch {
	case k.habits.nap > 0:
		k.rest(ctx, k.habits.nap)
	case k.habits.cuts || k.habits.absence:
		if tcp, ok := k.ws.NetConn().(*net.TCPConn); ok && k.random.IntN(2) == 0 {
			_ = tcp.SetLinger(0) // a reset
		}
		if k.habits.forgets && k.random.IntN(2) == 0 {
			for _, s := range k.streams {
				s.restart()
			}
		}
		return errCut
	case k.habits.churn:
		return k.churn(ctx)
	}
	return nil
}

// churn completes a stream, waits until the server has heard of it, and resumes.
func (k *socket) churn(ctx context.Context) error {
	ids := slices.Sorted(maps.Keys(k.byID))
	id := ids[k.random.IntN(len(ids))]
	s := k.byID[id]
	if err := k.send("complete", id, nil); err != nil {
		return err
	}
	if err := k.send("ping", "", map[string]string{"after": id}); err != nil {
		return err
	}
	for {
		m, err := k.receive()
		if err != nil {
			return err
		}
		if m.Type == "pong" && strings.Contains(string(m.Payload), `"`+id+`"`) {
			break
		}
		if err := k.take(ctx, m); err != nil {
			return err
		}
	}
	if k.byID[id] != s {
		return nil // it has just ended by itself, and goes on under another id
	}
	delete(k.byID, id)
	return k.subscribe(s)
}

// stream is one subscription across connections and restarts.
type stream struct {
	watched watched

	mu        sync.Mutex
	cursor    string // to resume from
	at        int64  // its revision
	pieces    []*piece
	resumed   int
	compacted int // used by its client only, as resumed is
}

func (s *stream) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%s at %d", s.watched, s.at)
}

// piece is what a stream was told without a restart: the present state, up to
// where that is of, and what has changed since.
type piece struct {
	fromNow bool
	present map[string]string
	from    int64 // -1: not known yet
	upTo    int64 // the revision of the newest cursor
	changes []told
}

// begin is called before each subscribe and returns the cursor to resume from.
func (s *stream) begin(fromNow bool) (since string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cursor != "" {
		s.resumed++
		return s.cursor
	}
	if n := len(s.pieces); n > 0 && s.pieces[n-1].from < 0 {
		s.pieces = s.pieces[:n-1] // cut off in the middle of the present state
	}
	s.pieces = append(s.pieces, &piece{fromNow: fromNow, present: map[string]string{}, from: -1})
	return ""
}

// place is the revision that the stream has come to.
func (s *stream) place() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// restart gives the cursor up, and returns its revision.
func (s *stream) restart() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.at
	s.cursor, s.at = "", 0
	return at
}

// event is the payload of a next, with the fields of all subscriptions.
type event struct {
	Type, Cursor, Kind, Reason, Actor, PreviousStatus, Status string
	Revision                                                  int64
	At                                                        time.Time
	Left                                                      bool
	Node                                                      *struct {
		ID, UID, Status string
		Schedulable     bool
		Revision        int64
	}
	Instance *struct {
		ID, Status           string
		Generation, Revision int64
	}
	Condition *struct{ Name, Status string }
}

func (s *stream) event(t *testing.T, payload json.RawMessage) {
	var answer struct {
		Data   map[string]*event
		Errors json.RawMessage
	}
	if err := json.Unmarshal(payload, &answer); err != nil || answer.Errors != nil || answer.Data[s.watched.field] == nil {
		t.Errorf("%s: %v: %s", s.watched, err, payload)
		return
	}
	e := answer.Data[s.watched.field]
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pieces[len(s.pieces)-1]
	switch e.Type {
	case "PRESENT":
		if p.from >= 0 || e.Cursor != "" || e.Left {
			t.Errorf("%s: PRESENT after SYNCED, with a cursor, or left: %s", s.watched, payload)
		}
		object, _, state := e.about()
		if _, twice := p.present[object]; twice {
			t.Errorf("%s: %s is present twice", s.watched, object)
		}
		p.present[object] = state
		return
	case "SYNCED":
		if p.from < 0 {
			p.from = e.Revision
		}
	case "CHANGE":
		_, line, _ := e.about()
		p.changes = append(p.changes, told{e.Revision, line})
	case "PROGRESS":
	default:
		t.Errorf("%s: an event of the type %q", s.watched, e.Type)
	}
	if p.from < 0 || e.Revision < s.at || e.Type == "CHANGE" && e.Revision == s.at || e.Cursor == "" {
		t.Errorf("%s: after revision %d came %s", s.watched, s.at, payload)
	}
	s.cursor, s.at, p.upTo = e.Cursor, e.Revision, e.Revision
}

// about is which object an event is about, the line that it comes to, and its state.
func (e *event) about() (object, line, state string) {
	var revision, generation int64
	schedulable := false
	switch {
	case e.Node != nil:
		object, revision, schedulable = e.Node.UID, e.Node.Revision, e.Node.Schedulable
	case e.Instance != nil:
		object, revision, generation = e.Instance.ID, e.Instance.Revision, e.Instance.Generation
	case e.Condition != nil:
		object = e.Condition.Name
	}
	return object, fmt.Sprintf("%d %s %s %s>%s left=%t %q by %s, of %d, generation %d, schedulable %t, resume %s", e.Revision, e.Kind, object,
			e.PreviousStatus, e.Status, e.Left, e.Reason, e.Actor, revision, generation, schedulable, e.Cursor),
		fmt.Sprintf("%s at %d", e.Status, revision)
}
