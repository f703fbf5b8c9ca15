package registration

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster"
)

// The headers of messages.
const (
	headerRollup  = "Nats-Rollup"
	headerTTL     = "Nats-TTL"
	headerStream  = "Nats-Expected-Stream"
	headerAfter   = "Nats-Expected-Last-Subject-Sequence"
	headerReason  = "Nats-Marker-Reason"
	headerOrigin  = "Muster-Origin"
	rollupSubject = "sub"
)

// The server's codes of errors.
const (
	errCodeNoPeers                jetstream.ErrorCode = 10005
	errCodeNoLeader               jetstream.ErrorCode = 10008
	errCodeOverlap                jetstream.ErrorCode = 10065
	errCodeWrongLastSequence      jetstream.ErrorCode = 10071
	errCodeNoCluster              jetstream.ErrorCode = 10074
	errCodeWrongLastSequenceConst jetstream.ErrorCode = 10164
)

// The kinds of failure of a Publisher.
var (
	// ErrUnavailable: the server was not reached, or did not answer. It may have happened.
	ErrUnavailable = errors.New("the discovery feed cannot be reached")
	// ErrOvertaken: the subject has another last message than the caller believes.
	ErrOvertaken = errors.New("somebody else has written the entry")
	// ErrRefused: the server does not take it, and would not the next time.
	ErrRefused = errors.New("the discovery feed refuses the entry")
)

// errNotConnected is what is wrong most of the time.
var errNotConnected = errors.New("there is no connection to the NATS server")

// Kind is what a Publisher does.
type Kind string

// The kinds of Publisher.
const (
	JetStream Kind = "jetstream" // each message is acknowledged
	Plain     Kind = "nats"      // best effort: nobody says whether a message arrived
	Noop      Kind = "noop"      // nothing is published
)

// Publisher puts entries into a feed and takes them out.
//
// Each write says after which message of its subject it comes, by sequence, 0 for none; the
// server refuses it when there is another, so that one which was held up on its way
// changes nothing any more. Errors are ErrUnavailable, ErrOvertaken or ErrRefused.
type Publisher interface {
	// Publish puts a valid entry there and returns its sequence.
	Publish(ctx context.Context, r *muster.Registration, after uint64) (uint64, error)
	// Remove puts a marker there, which tells those who watch that the entry is gone, and
	// returns its sequence.
	Remove(ctx context.Context, subject string, after uint64) (uint64, error)
	// Last returns a subject's last message, nil when there is none.
	Last(ctx context.Context, subject string) (*Message, error)
	Kind() Kind
}

// jetStream is the Publisher that knows what became of each message.
type jetStream struct {
	stream *Stream
	origin string
}

// NewJetStream returns a Publisher into a stream; origin marks its messages as those of
// one cluster.
func NewJetStream(stream *Stream, origin string) Publisher { return &jetStream{stream, origin} }

func (p *jetStream) Kind() Kind { return JetStream }

func (p *jetStream) Publish(ctx context.Context, r *muster.Registration, after uint64) (uint64, error) {
	data, err := Encode(r)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	msg := &nats.Msg{Subject: Subject(r), Data: data, Header: nats.Header{}}
	if r.TTL != nil {
		msg.Header.Set(headerTTL, muster.FormatRegistrationTTL(*r.TTL))
	}
	return p.send(ctx, msg, after)
}

func (p *jetStream) Remove(ctx context.Context, subject string, after uint64) (uint64, error) {
	return p.send(ctx, marker(subject, p.stream.MaxAge()), after)
}

// marker is the message that tells of a removal.
func marker(subject string, ttl time.Duration) *nats.Msg {
	return &nats.Msg{Subject: subject, Header: nats.Header{
		headerReason: {string(Removed)}, headerRollup: {rollupSubject}, headerTTL: {ttl.String()},
	}}
}

func (p *jetStream) send(ctx context.Context, msg *nats.Msg, after uint64) (uint64, error) {
	ctx, done := p.stream.conn.request(ctx, msg.Subject)
	defer done()
	msg.Header.Set(headerRollup, rollupSubject)
	msg.Header.Set(headerStream, p.stream.opts.Name)
	msg.Header.Set(headerOrigin, p.origin)
	msg.Header.Set(headerAfter, strconv.FormatUint(after, 10))
	// It is the caller who tries again, with what is wanted by then.
	ack, err := p.stream.conn.JetStream().PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return 0, classify(because(ctx, err))
	}
	return ack.Sequence, nil
}

func (p *jetStream) Last(ctx context.Context, subject string) (*Message, error) {
	ctx, done := p.stream.conn.request(ctx, "")
	defer done()
	stream, err := p.stream.conn.JetStream().Stream(ctx, p.stream.opts.Name)
	if err != nil {
		return nil, classify(because(ctx, err))
	}
	raw, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, classify(because(ctx, err))
	}
	m := read(raw.Subject, raw.Header, raw.Data)
	m.Sequence, m.At = raw.Sequence, raw.Time
	return &m, nil
}

// classify gives an error its kind. What is not known is taken for passing: trying in
// vain costs less than not trying.
func classify(err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	denied, isDenied := errors.AsType[*denial](err)
	switch {
	case isDenied && denied.entry:
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case ok && (api.ErrorCode == errCodeWrongLastSequence || api.ErrorCode == errCodeWrongLastSequenceConst):
		return fmt.Errorf("%w: %w", ErrOvertaken, err)
	case ok && api.Code >= 400 && api.Code < 500 && api.ErrorCode != jetstream.JSErrCodeStreamNotFound:
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded):
		err = errNotConnected // how the client says it when it may not buffer
	case errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// plain is the Publisher that sends and hopes.
type plain struct{ conn *Conn }

// NewPlain returns a Publisher of plain messages: the same subjects and entries, without headers
// and without anybody who acknowledges them.
func NewPlain(conn *Conn) Publisher { return &plain{conn} }

func (p *plain) Kind() Kind { return Plain }

func (p *plain) Publish(_ context.Context, r *muster.Registration, _ uint64) (uint64, error) {
	data, err := Encode(r)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return 0, p.send(&nats.Msg{Subject: Subject(r), Data: data})
}

// Remove sends the marker as a stream would have it, for nothing else can say that an
// entry is gone.
func (p *plain) Remove(_ context.Context, subject string, _ uint64) (uint64, error) {
	return 0, p.send(marker(subject, DefaultMaxAge))
}

func (p *plain) send(msg *nats.Msg) error {
	p.conn.renew()
	if err := p.conn.now().PublishMsg(msg); err != nil {
		return classify(err)
	}
	return nil
}

func (p *plain) Last(context.Context, string) (*Message, error) { return nil, nil }

// noop is the Publisher of those who want none.
type noop struct{}

// NewNoop returns a Publisher that does nothing and always succeeds.
func NewNoop() Publisher { return noop{} }

func (noop) Kind() Kind { return Noop }

func (noop) Publish(context.Context, *muster.Registration, uint64) (uint64, error) { return 0, nil }

func (noop) Remove(context.Context, string, uint64) (uint64, error) { return 0, nil }

func (noop) Last(context.Context, string) (*Message, error) { return nil, nil }
