package server

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
)

// The limits of commands in instances.
const (
	maxExecs      = 64               // sessions at a time
	execAsk       = 10 * time.Second // for the caller to say what to run, and the agent to come
	execPing      = 20 * time.Second
	execPatience  = 50 * time.Second // without a sign of life
	execWriteTime = 30 * time.Second // for one message to be taken
	maxExecAsk    = 64 << 10         // bytes of what to run
)

// execs are the sessions of commands: a caller on one side, an agent on the other.
type execs struct {
	mu       sync.Mutex
	sessions map[string]*execSession
	running  sync.WaitGroup
}

// execSession is one command's. Whoever has its id may come as the agent once, with
// the key of that node. It ends when the key of either side does.
type execSession struct {
	by    muster.Principal // who called
	agent muster.Principal // who came for it; nobody, who is admitted, until then
	node  muster.NodeUID
	came  chan execAgent
	end   context.CancelCauseFunc
}

// execAgent is an agent that comes for a session.
type execAgent struct {
	conn *websocket.Conn
	by   muster.Principal
}

// errCallerExpelled and errAgentExpelled are what the caller of a command is told that
// ended with a key. They are in a close frame, which has room for 123 bytes.
var (
	errCallerExpelled = muster.Errorf(muster.Forbidden, "the access key was revoked, has expired or has a new secret: present one that is good")
	errAgentExpelled  = muster.Errorf(muster.Unavailable, "the key of the instance's node was revoked, has expired or has a new secret")
)

// exec runs a command in an instance: GET /exec/{instance} as a WebSocket, whose first
// message says what to run and whose others are the command's streams.
func (s *Server) exec() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
		defer cancel(nil)
		p := muster.PrincipalOf(r.Context())
		defer atExpiry(p, func() { cancel(errCallerExpelled) })()
		id, session, err := s.execs.begin(p, cancel)
		if err != nil {
			refuseCaller(w, err)
			return
		}
		defer s.execs.end(id)
		caller, err := s.upgradeExec(w, r)
		if err != nil {
			return // it was told
		}
		defer func() { _ = caller.Close() }()
		if err := s.execOver(ctx, r.PathValue("instance"), id, session, caller); err != nil {
			s.registry.AuditRefused(p, err)
			farewell(caller, err)
		}
	})
}

// endedByKey is what the caller of a session is told that ctx is, if a key has ended it.
func endedByKey(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, errCallerExpelled) || errors.Is(cause, errAgentExpelled) {
		return cause
	}
	return nil
}

// atExpiry calls f when a principal's key expires, until it is told to stop.
func atExpiry(p muster.Principal, f func()) (stop func()) {
	if p.Expires.IsZero() {
		return func() {}
	}
	timer := time.AfterFunc(time.Until(p.Expires), f)
	return func() { timer.Stop() }
}

// execOver asks the agent to come, and passes on what both say.
func (s *Server) execOver(ctx context.Context, instance, id string, session *execSession, caller *websocket.Conn) error {
	request, err := readExecRequest(caller)
	if err != nil {
		return err
	}
	request.Session = id
	asked, cancel := context.WithTimeout(ctx, execAsk)
	defer cancel()
	node, err := s.registry.Exec(asked, muster.InstanceID(instance), request)
	if ended := endedByKey(ctx); ended != nil {
		return ended
	}
	if err != nil {
		return err
	}
	s.execs.expect(session, node)
	select {
	case agent := <-session.came:
		defer atExpiry(agent.by, func() { session.end(errAgentExpelled) })()
		s.execs.bind(session, agent.by)
		s.execs.expel(s.registry.Admitted) // its key may have ended before it was bound
		join(ctx, caller, agent.conn)
		return nil
	case <-asked.Done():
		if ended := endedByKey(ctx); ended != nil {
			return ended
		}
		return muster.Errorf(muster.Unavailable, "the agent did not connect the command's streams within %s: try again", execAsk)
	}
}

func readExecRequest(caller *websocket.Conn) (request muster.ExecRequest, err error) {
	caller.SetReadLimit(maxExecAsk)
	_ = caller.SetReadDeadline(time.Now().Add(execAsk))
	if err := caller.ReadJSON(&request); err != nil {
		return request, muster.Errorf(muster.Invalid, "the first message has to say what to run, as JSON")
	}
	return request, request.Validate()
}

// execAgent is where an agent connects the streams of a command: GET /exec/sessions/{session}.
func (s *Server) execAgent() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := muster.PrincipalOf(r.Context())
		session := s.execs.find(r.PathValue("session"), p)
		if session == nil {
			writeError(w, http.StatusNotFound, muster.Errorf(muster.NotFound, "there is no such session, or it has ended"))
			return
		}
		agent, err := s.upgradeExec(w, r)
		if err != nil {
			return
		}
		select {
		case session.came <- execAgent{agent, p}: // there is room for the one that counts
		default:
			farewell(agent, muster.Errorf(muster.Conflict, "the session has its agent"))
			_ = agent.Close()
		}
	})
}

func (s *Server) upgradeExec(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	upgrader := websocket.Upgrader{Subprotocols: []string{muster.ExecProtocol}, CheckOrigin: s.transport.SameOrigin}
	return upgrader.Upgrade(w, r, http.Header{})
}

// begin makes a session. LIMIT: there are as many as may be.
func (e *execs) begin(by muster.Principal, end context.CancelCauseFunc) (string, *execSession, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.sessions) >= maxExecs {
		err := muster.Errorf(muster.Limit, "%d commands run in instances, which is the limit: end some, or try again later", maxExecs)
		err.Details = map[string]any{"limit": "execs"}
		return "", nil, err
	}
	if e.sessions == nil {
		e.sessions = map[string]*execSession{}
	}
	id := rand.Text()
	s := &execSession{by: by, came: make(chan execAgent, 1), end: end}
	e.sessions[id] = s
	e.running.Add(1)
	return id, s, nil
}

// expect says whose agent is to come.
func (e *execs) expect(s *execSession, node muster.NodeUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.node = node
}

// bind says who has come: the session ends with their key, too.
func (e *execs) bind(s *execSession, agent muster.Principal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.agent = agent
}

// find is the session that a node's agent comes for; nil: there is none.
func (e *execs) find(id string, p muster.Principal) *execSession {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[id]
	if s == nil || s.node != "" && p.NodeUID != "" && p.NodeUID != s.node {
		return nil
	}
	return s
}

func (e *execs) end(id string) {
	e.mu.Lock()
	s := e.sessions[id]
	delete(e.sessions, id)
	e.mu.Unlock()
	select {
	case late := <-s.came: // it came when nobody waited any more
		_ = late.conn.Close()
	default:
	}
	e.running.Done()
}

// expel ends the sessions of which a side is no longer admitted.
func (e *execs) expel(admitted func(muster.Principal) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sessions {
		switch {
		case !admitted(s.by):
			s.end(errCallerExpelled)
		case !admitted(s.agent):
			s.end(errAgentExpelled)
		}
	}
}

// close ends all sessions and waits for them.
func (e *execs) close() {
	e.mu.Lock()
	for _, s := range e.sessions {
		s.end(nil)
	}
	e.mu.Unlock()
	e.running.Wait()
}

// join passes messages on between two connections until one ends or ctx does, and then
// ends both. The last that the caller is told is that a key has ended it, if one has.
func join(ctx context.Context, caller, agent *websocket.Conn) {
	var both sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hangUp := context.AfterFunc(ctx, func() {
		switch ended := endedByKey(ctx); {
		case errors.Is(ended, errCallerExpelled):
			dismiss(caller, execExpelled, ended)
		case ended != nil:
			dismiss(caller, websocket.CloseGoingAway, ended)
		}
		_, _ = caller.Close(), agent.Close()
	})
	defer hangUp()
	both.Go(func() { pass(caller, agent) })
	both.Go(func() { pass(agent, caller) })
	ended := make(chan struct{})
	go func() { both.Wait(); close(ended) }()
	keepAlive(ctx, ended, caller, agent)
	<-ended
}

// dismiss says why a session ends. A caller that takes nothing is not waited for.
func dismiss(caller *websocket.Conn, code int, why error) {
	_ = caller.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, why.Error()), time.Now().Add(200*time.Millisecond))
}

// pass passes on what comes from one connection until it ends, and the way it ended.
func pass(from, to *websocket.Conn) {
	from.SetReadLimit(muster.MaxExecMessage)
	alive := func(string) error { return from.SetReadDeadline(time.Now().Add(execPatience)) }
	from.SetPongHandler(alive)
	lost := false // nobody takes what comes
	_ = alive("")
	for {
		kind, message, err := from.ReadMessage()
		if err != nil {
			code, text := websocket.CloseGoingAway, "the other side is gone"
			if closed, ok := errors.AsType[*websocket.CloseError](err); ok && closed.Code != websocket.CloseAbnormalClosure && closed.Code != websocket.CloseNoStatusReceived {
				code, text = closed.Code, closed.Text
			}
			_ = to.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, text), time.Now().Add(time.Second))
			_ = to.NetConn().SetReadDeadline(time.Now().Add(time.Second)) // what it still sends is read: it may not have read the last words
			return
		}
		if lost {
			continue
		}
		_ = to.SetWriteDeadline(time.Now().Add(execWriteTime))
		if lost = to.WriteMessage(kind, message) != nil; lost {
			_ = from.NetConn().SetReadDeadline(time.Now().Add(time.Second))
		}
	}
}

// keepAlive asks for signs of life until the session ends.
func keepAlive(ctx context.Context, ended <-chan struct{}, conns ...*websocket.Conn) {
	tick := time.NewTicker(execPing)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			return
		case <-tick.C:
			for _, conn := range conns {
				_ = conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
			}
		}
	}
}

// The close codes of sessions.
const (
	execRefusal  = 4400 // it did not come about; the reason is an error as JSON
	execExpelled = 4403 // its caller's key has ended
)

// farewell tells a caller why, in a frame that has room for 123 bytes.
func farewell(conn *websocket.Conn, err error) {
	known, ok := errors.AsType[*muster.Error](err)
	if !ok {
		known = muster.Errorf(muster.Internal, "the server failed: its log says why")
	}
	if message, err := json.Marshal(map[string]any{"code": known.Code, "message": known.Error()}); err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_ = conn.WriteMessage(websocket.TextMessage, message)
	}
	_ = conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(execRefusal, string(known.Code)), time.Now().Add(time.Second))
}
