package liveness

import (
	"fmt"
	"sync"
	"time"
)

// jumpTolerance is how far the wall clock may drift from the monotonic one
// between two looks before it is called a jump.
const jumpTolerance = 2 * time.Second

// Pulse looks at the clocks each time that it is asked, and tells when this
// process could not have heard a beat. It is safe for concurrent use: the more
// often it is asked, and the more independently, the less it takes for stillness.
type Pulse struct {
	interval time.Duration
	wall     func() time.Time

	mu       sync.Mutex
	at       time.Time // monotonic
	wallAt   time.Time
	heardNot string // why silence is not believed, since the last Take
}

// NewPulse returns a pulse that has not looked yet. wall reads the wall clock;
// its monotonic part is not used.
func NewPulse(interval time.Duration, wall func() time.Time) *Pulse {
	return &Pulse{interval: interval, wall: wall}
}

// Look compares the clocks with the last look.
func (p *Pulse) Look(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wall := p.wall().Round(0)
	if !p.at.IsZero() {
		passed := now.Sub(p.at)
		drift := wall.Sub(p.wallAt) - passed
		switch {
		case passed >= p.interval: // one beat's worth: less does no harm
			p.heardNot = fmt.Sprintf("this server stood still for %s", passed.Round(time.Second))
		case drift > jumpTolerance || drift < -jumpTolerance:
			p.heardNot = fmt.Sprintf("the clock jumped by %s: it was set, or the machine was suspended", drift.Round(time.Second))
		}
	}
	p.at, p.wallAt = now, wall
}

// Deaf says, for a reason that the caller found, that no beat could be heard.
func (p *Pulse) Deaf(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heardNot = why
}

// Take returns why silence up to now is not to be believed, "" when it is, and
// forgets it.
func (p *Pulse) Take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	why := p.heardNot
	p.heardNot = ""
	return why
}
