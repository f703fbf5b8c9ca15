package registration

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How a stream is read. A message may have a megabyte, so that few are under way at once.
const (
	readAhead     = 32
	heartbeat     = 2 * time.Second // two that are missing end a fetch
	nextWait      = 5 * time.Second
	idleThreshold = 30 * time.Second
	lookupTimeout = 30 * time.Second
)

// Held returns what the stream holds: the last message of each subject, markers
// among them, in the order in which they were written. What could not be read to its end is an
// error, never a shorter list. ErrUnavailable is the kind.
func Held(ctx context.Context, s *Stream) ([]Message, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	r, err := s.openReader(ctx, "muster-lookup-"+rand.Text())
	if err != nil {
		return nil, err
	}
	defer r.close()
	last := map[string]int{}
	var held []Message
	for {
		done, err := r.caughtUp(ctx)
		if err != nil {
			return nil, err
		}
		if done {
			return present(held), nil
		}
		m, err := r.next(ctx, nextWait)
		if err != nil {
			return nil, fmt.Errorf("%w: reading was cut short: %w", ErrUnavailable, err)
		}
		if m == nil {
			continue
		}
		if i, ok := last[m.Subject]; ok {
			held[i] = Message{} // it was replaced while we read
		}
		last[m.Subject] = len(held)
		held = append(held, *m)
	}
}

// present leaves the blanks out.
func present(held []Message) []Message {
	kept := held[:0]
	for _, m := range held {
		if m.Subject != "" {
			kept = append(kept, m)
		}
	}
	return kept
}

// reader reads a stream in order, from its beginning, over a consumer that is its own.
type reader struct {
	stream   *Stream
	name     string
	consumer jetstream.Consumer
	fetch    jetstream.MessageBatch // nil: none is under way
	stop     context.CancelFunc     // ends the fetch
	created  time.Time              // of the stream: another one has another
	settled  bool                   // there was a moment at which all had been read
	last     bool                   // the message read last came with word that none is behind it
	seq      uint64                 // of the last message read
	read     uint64                 // how many
}

// openReader makes the consumer; one of the same name, which an earlier reader left behind,
// is replaced.
func (s *Stream) openReader(ctx context.Context, name string) (*reader, error) {
	info, err := s.info(ctx)
	if err != nil {
		return nil, err
	}
	asking, done := s.conn.request(ctx, "")
	defer done()
	js := s.conn.JetStream()
	if err := js.DeleteConsumer(asking, s.opts.Name, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return nil, classify(because(asking, err))
	}
	consumer, err := js.CreateConsumer(asking, s.opts.Name, jetstream.ConsumerConfig{
		Name: name, FilterSubject: Prefix + ".>", DeliverPolicy: jetstream.DeliverAllPolicy, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: idleThreshold,
	})
	if err != nil {
		return nil, classify(because(asking, err))
	}
	return &reader{
		stream: s, name: name, consumer: consumer, stop: func() {},
		created: info.Created, last: consumer.CachedInfo().NumPending == 0,
	}, nil
}

// caughtUp tells whether there was a moment at which all had been read. To have read the message that
// was the last at the beginning is not enough: another may have been replaced meanwhile, by one after it.
// Nor is the word that comes with a message, that none is behind it: the server counts wrong while
// messages are replaced. It only says when to ask.
func (r *reader) caughtUp(ctx context.Context) (bool, error) {
	if r.settled || !r.last {
		return r.settled, nil
	}
	r.last = false
	return r.ask(ctx)
}

// next waits for a message; nil when none came for so long. An error ends the reader: what it
// did not read is read by the next.
func (r *reader) next(ctx context.Context, wait time.Duration) (*Message, error) {
	enough := time.NewTimer(wait)
	defer enough.Stop()
	for {
		if err := r.ensureFetch(ctx); err != nil {
			return nil, err
		}
		select {
		case msg, ok := <-r.fetch.Messages():
			if ok {
				return r.accept(msg)
			}
			err := r.fetch.Error()
			r.fetch = nil // it was full, or its time is over
			r.stop()
			if err != nil {
				return nil, err
			}
		case <-enough.C:
			r.last = true // or the one behind was removed
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ensureFetch asks for messages when none are asked for. Each time it is a request of its own:
// [jetstream.Consumer.Messages] of nats.go 1.55.0 at times forgets to ask for more.
func (r *reader) ensureFetch(ctx context.Context) (err error) {
	if r.fetch != nil {
		return nil
	}
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx)) // a deadline would be the fetch's, too
	r.fetch, err = r.consumer.Fetch(readAhead, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(heartbeat))
	if err != nil {
		r.stop()
	}
	return err
}

// accept reads a message that is the next in order.
func (r *reader) accept(msg jetstream.Msg) (*Message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	if r.read++; meta.Sequence.Consumer != r.read {
		return nil, fmt.Errorf("messages are missing: number %d came as number %d", r.read, meta.Sequence.Consumer)
	}
	r.seq = meta.Sequence.Stream
	r.last = meta.NumPending == 0
	m := read(msg.Subject(), msg.Headers(), msg.Data())
	m.Sequence, m.At = r.seq, meta.Timestamp
	return &m, nil
}

// ask tells whether the stream has nothing behind what was read. All that is there at that moment has
// then been read, for it was there when its turn came.
func (r *reader) ask(ctx context.Context) (bool, error) {
	behind, err := r.stream.has(ctx, r.seq+1)
	r.settled = err == nil && !behind
	return r.settled, err
}

// close ends the reader, and takes its consumer from the server when it can be reached.
func (r *reader) close() {
	r.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// Unreachable, the server removes it by itself once it has been idle for a while.
	_ = r.stream.conn.JetStream().DeleteConsumer(ctx, r.stream.opts.Name, r.name)
}

// info asks for the stream's state.
func (s *Stream) info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	ctx, done := s.conn.request(ctx, "")
	defer done()
	stream, err := s.conn.JetStream().Stream(ctx, s.opts.Name)
	if err != nil {
		return nil, classify(because(ctx, err))
	}
	if len(opts) == 0 {
		return stream.CachedInfo(), nil
	}
	info, err := stream.Info(ctx, opts...)
	if err != nil {
		return nil, classify(because(ctx, err))
	}
	return info, nil
}

// has tells whether the stream has a message with that sequence, or a higher one. It has its leader
// answer: a copy may not know of the last ones yet, so that [jetstream.Stream] with its direct reads won't do.
func (s *Stream) has(ctx context.Context, seq uint64) (bool, error) {
	ctx, done := s.conn.request(ctx, "")
	defer done()
	body, err := json.Marshal(map[string]any{"seq": seq, "next_by_subj": Prefix + ".>", "no_hdr": true})
	if err != nil {
		return false, err
	}
	answer, err := s.conn.now().RequestWithContext(ctx, s.conn.api()+"STREAM.MSG.GET."+s.opts.Name, body)
	if err != nil {
		return false, classify(because(ctx, err))
	}
	var out struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &out); err != nil {
		return false, classify(err)
	}
	switch {
	case out.Error == nil:
		return true, nil
	case out.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return false, nil
	default:
		return false, classify(out.Error)
	}
}
