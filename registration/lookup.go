package registration

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How a stream is read. A message may have a megabyte, so that few are under way at once.
const (
	readAhead     = 32
	heartbeat     = 2 * time.Second
	nextWait      = 5 * time.Second // above two heartbeats, so that they are missed in time
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
	for !r.caughtUp() {
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
	kept := held[:0]
	for _, m := range held {
		if m.Subject != "" {
			kept = append(kept, m)
		}
	}
	return kept, nil
}

// reader reads a stream in order, from its beginning, over a consumer that is its own.
type reader struct {
	stream   *Stream
	name     string
	consumer jetstream.Consumer
	messages jetstream.MessagesContext
	created  time.Time // of the stream: another one has another
	pending  bool      // whether the server has more
	seq      uint64    // of the last message read
	read     uint64    // how many
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
	messages, err := consumer.Messages(jetstream.PullMaxMessages(readAhead), jetstream.PullHeartbeat(heartbeat), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return nil, classify(err)
	}
	return &reader{
		stream: s, name: name, consumer: consumer, messages: messages,
		created: info.Created, pending: consumer.CachedInfo().NumPending > 0,
	}, nil
}

// caughtUp tells whether there was a moment at which all had been read. To have read the message that
// was the last at the beginning is not enough: another may have been replaced meanwhile, by one after it.
func (r *reader) caughtUp() bool { return !r.pending }

// next waits for a message; nil when none came for so long. An error ends the reader: what it
// did not read is read by the next.
func (r *reader) next(ctx context.Context, wait time.Duration) (*Message, error) {
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	msg, err := r.messages.Next(jetstream.NextContext(waiting))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, r.ask(ctx)
	}
	if err != nil {
		return nil, err
	}
	meta, err := msg.Metadata()
	if err != nil {
		return nil, err
	}
	if r.read++; meta.Sequence.Consumer != r.read {
		return nil, fmt.Errorf("messages are missing: number %d came as number %d", r.read, meta.Sequence.Consumer)
	}
	r.seq = meta.Sequence.Stream
	r.pending = r.pending && meta.NumPending > 0
	m := read(msg.Subject(), msg.Headers(), msg.Data())
	m.Sequence, m.At = r.seq, meta.Timestamp
	return &m, nil
}

// ask has the server say whether there is more: the messages that were to come may have been removed since.
func (r *reader) ask(ctx context.Context) error {
	if r.caughtUp() {
		return nil
	}
	ctx, done := r.stream.conn.request(ctx, "")
	defer done()
	info, err := r.consumer.Info(ctx)
	if err != nil {
		return classify(because(ctx, err))
	}
	r.pending = info.NumPending > 0
	return nil
}

// close ends the reader, and takes its consumer from the server when it can be reached.
func (r *reader) close() {
	r.messages.Stop()
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
