package registry

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/muster-cloud/muster"
)

const (
	// answerTime is how long an agent may take to answer. It waits for less than that
	// when it is asked to wait.
	answerTime = 20 * time.Second
	// logPause is the least time between two answers that had nothing.
	logPause = 100 * time.Millisecond
)

// readers counts the logs that are being read.
type readers struct {
	mu  sync.Mutex
	all int
	of  map[muster.NodeUID]int
}

func (c *readers) enter(o *Options, uid muster.NodeUID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	limit, most := "", 0
	switch {
	case c.all >= o.LogReaders:
		limit, most = "logReaders", o.LogReaders
	case c.of[uid] >= o.LogReadersPerNode:
		limit, most = "logReadersPerNode", o.LogReadersPerNode
	default:
		if c.of == nil {
			c.of = map[muster.NodeUID]int{}
		}
		c.all++
		c.of[uid]++
		return nil
	}
	e := muster.Errorf(muster.Limit, "%d logs are being read, which is the limit %s: end some, or try again later", most, limit)
	e.Details = map[string]any{"limit": limit}
	return e
}

func (c *readers) leave(uid muster.NodeUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.of[uid]--; c.of[uid] == 0 {
		delete(c.of, uid)
	}
}

// InstanceLogs yields what an instance wrote to its console, each piece once the last
// one was taken: up to what there is now, or with Follow until it is terminated. The
// last piece says that it is. UNAVAILABLE: its node is away; go on after the place of
// the last piece.
func (r *Registry) InstanceLogs(ctx context.Context, in muster.InstanceLogsInput, yield func(*muster.LogPiece) error) error {
	after, err := in.Validate()
	if err != nil {
		return err
	}
	i := r.Seen(ctx).Instance(in.ID)
	if i == nil || i.Status == muster.Terminated {
		return muster.Errorf(muster.NotFound, "there is no instance %q, or it was terminated and its log with it: see the list of instances", in.ID)
	}
	if after != nil && after.Generation > i.Generation {
		return muster.InvalidField("after", "%s is a place of a later start of %s than its last one, %d: leave it out", after, i.ID, i.Generation)
	}
	return r.readLog(ctx, &logReader{in: in, yield: yield}, after)
}

// ServiceLogs is InstanceLogs for what a service wrote to its standard output and error,
// until it is removed.
func (r *Registry) ServiceLogs(ctx context.Context, id muster.ServiceID, in muster.InstanceLogsInput, yield func(*muster.LogPiece) error) error {
	if err := muster.CheckID("id", string(id)); err != nil {
		return err
	}
	s := r.Seen(ctx).Service(id)
	if s == nil || s.Gone() {
		return muster.Errorf(muster.NotFound, "there is no service %q, or it was removed and its log with it: see the list of services", id)
	}
	in.ID = s.InstanceID
	after, err := in.Validate()
	if err != nil {
		return err
	}
	return r.readLog(ctx, &logReader{in: in, service: id, yield: yield}, after)
}

// readLog reads within the limits of how many may.
func (r *Registry) readLog(ctx context.Context, l *logReader, after *muster.LogPlace) error {
	i := r.View().rawInstance(l.in.ID)
	if i == nil {
		return noInstance(l.in.ID)
	}
	if err := r.readers.enter(&r.opts, i.NodeUID); err != nil {
		return err
	}
	defer r.readers.leave(i.NodeUID)
	l.r, l.place, l.stop = r, muster.LogPlace{Generation: i.Generation, Offset: -1}, -1
	if after != nil {
		l.place = *after
	}
	return l.run(ctx)
}

// logReader is one reading of a log.
type logReader struct {
	r       *Registry
	in      muster.InstanceLogsInput
	service muster.ServiceID // empty: the instance's console
	yield   func(*muster.LogPiece) error
	place   muster.LogPlace // below 0: at the tail
	stop    int64           // without Follow: where it ends; below 0: not known yet
	partial bool            // the last answer was the beginning of a character and nothing else
}

// run reads until there is no more to come.
func (l *logReader) run(ctx context.Context) error {
	idle := int64(-1) // the instance's revision at which there was no more
	for {
		changed := l.r.Hub.Changed() // taken before looking, so that nothing is missed
		i, revision := l.source()
		if i == nil {
			return l.end()
		}
		if revision == idle {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		more, err := l.step(ctx, i)
		switch {
		case err != nil:
			return err
		case more:
		case !l.in.Follow:
			return l.end()
		default:
			idle = revision
		}
	}
}

// source is the instance that is read from, and the revision of whose log it is; nil:
// it is gone.
func (l *logReader) source() (*muster.Instance, int64) {
	v := l.r.View()
	i := v.rawInstance(l.in.ID)
	if i == nil || i.Status == muster.Terminated {
		return nil, 0
	}
	if l.service == "" {
		return i, i.Revision
	}
	s := v.Service(l.service)
	if s == nil || s.Gone() {
		return nil, 0
	}
	return i, max(i.Revision, s.Revision)
}

func (l *logReader) end() error {
	return l.yield(&muster.LogPiece{
		Place: muster.LogPlace{Generation: l.place.Generation, Offset: max(l.place.Offset, 0)}.String(), Generation: l.place.Generation,
		Offset: max(l.place.Offset, 0), End: true,
	})
}

// step asks for one part and yields it. False: there is no more until the instance
// changes.
func (l *logReader) step(ctx context.Context, i *muster.Instance) (more bool, err error) {
	if i.NodeUID == "" && i.Status == muster.Pending {
		return false, nil
	}
	answer, err := l.ask(ctx, i)
	if err != nil {
		return false, err
	}
	switch {
	case answer.Code != nil && *answer.Code == muster.NotFound, answer.Ended:
		if l.place.Generation >= i.Generation {
			return false, nil
		}
		l.place = muster.LogPlace{Generation: i.Generation} // whatever an earlier start has left is read
		return true, nil
	case answer.Code != nil:
		return false, muster.Errorf(muster.Unavailable, "the agent of %s's node cannot read its log: %s", i.ID, answer.Message)
	case len(answer.Data) == 0:
		return l.in.Follow, pause(ctx, logPause)
	}
	if err := l.deliver(ctx, answer); err != nil {
		return false, err
	}
	if l.stop < 0 && l.place.Generation == i.Generation {
		l.stop = answer.End
	}
	return l.in.Follow || l.stop < 0 || l.place.Offset < l.stop, nil
}

// ask asks the instance's agent for what comes next.
func (l *logReader) ask(ctx context.Context, i *muster.Instance) (*muster.AgentAnswerInput, error) {
	v := l.r.View()
	n := v.NodeByUID(i.NodeUID)
	if n == nil || !n.Live() {
		return nil, muster.Errorf(muster.Unavailable, "the node of %s is gone from the registry, and its log with it until the node returns", i.ID)
	}
	of := *i
	of.Generation = l.place.Generation
	request := muster.LogRequest{Machine: machine(v, &of), Process: string(l.service), Offset: l.place.Offset, Tail: -1, Limit: muster.MaxLogData, Wait: l.in.Follow}
	if l.in.Tail != nil {
		request.Tail = *l.in.Tail
	}
	timed, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	answer, err := l.r.desk.ask(timed, n.UID, muster.AgentRequest{Log: &request})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil, muster.Errorf(muster.Unavailable, "the agent of node %s did not answer within %s: the log of %s is on the node; try again later", n.ID, answerTime, i.ID)
	case err != nil:
		return nil, err
	case answer == nil:
		return nil, muster.Errorf(muster.Unavailable, "node %s is away: its agent is not connected, and the log of %s is on the node; try again when it is back", n.ID, i.ID)
	}
	return answer, nil
}

// deliver yields an answer's data as text. A character whose end is still to come
// waits for it.
func (l *logReader) deliver(ctx context.Context, answer *muster.AgentAnswerInput) error {
	data := answer.Data[:wholeRunes(answer.Data)]
	if len(data) == 0 {
		if !l.partial {
			l.partial = true
			l.place.Offset = answer.Offset
			return pause(ctx, logPause)
		}
		data = answer.Data // nothing came
	}
	l.partial = false
	piece := &muster.LogPiece{
		Text: strings.ToValidUTF8(string(data), "\uFFFD"), Generation: l.place.Generation, Offset: answer.Offset,
	}
	if l.place.Offset >= 0 {
		piece.Skipped = max(answer.Offset-l.place.Offset, 0)
	}
	l.place.Offset = answer.Offset + int64(len(data))
	piece.Place = l.place.String()
	return l.yield(piece)
}

// wholeRunes is how much of the data does not end within a character.
func wholeRunes(data []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(data); back++ {
		last := data[len(data)-back:]
		if !utf8.RuneStart(last[0]) {
			continue
		}
		if utf8.FullRune(last) {
			return len(data)
		}
		return len(data) - back
	}
	return len(data)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
