package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// meter is the registry as the agents see it: the real one, timed.
type meter struct {
	*client.Client
	jitter time.Duration

	beats, launches, starts latency // starts: from a launch's commit to RUNNING
	registrations           atomic.Int64
	terminations            atomic.Int64
	errors                  atomic.Int64

	mu   sync.Mutex
	last string // the newest error
}

// failed counts a call that failed, unless it was given up at the end.
func (m *meter) failed(ctx context.Context, err error) {
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	m.errors.Add(1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = err.Error()
}

func (m *meter) lastError() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

// RegisterNode registers. A cluster without room for the node is a wrong setting,
// which ends the simulation: it would not pass.
func (m *meter) RegisterNode(ctx context.Context, input muster.RegisterNodeInput) (*client.Registration, error) {
	answer, err := m.Client.RegisterNode(ctx, input)
	if err == nil {
		m.registrations.Add(1)
		return answer, nil
	}
	m.failed(ctx, err)
	if e, ok := errors.AsType[*muster.Error](err); ok && e.Details["limit"] == "instance-network" {
		return nil, muster.Errorf(muster.Invalid, "%w, such as 10.0.0.0/8", err)
	}
	return nil, err
}

// Heartbeat beats, and takes the time.
func (m *meter) Heartbeat(ctx context.Context, input muster.HeartbeatInput) (*muster.Beat, error) {
	if m.jitter > 0 && !pause(ctx, rand.N(m.jitter)) {
		return nil, ctx.Err()
	}
	began := time.Now()
	beat, err := m.Client.Heartbeat(ctx, input)
	if err == nil {
		m.beats.add(time.Since(began))
	}
	m.failed(ctx, err)
	return beat, err
}

// pause waits and reports whether ctx went on for as long.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
