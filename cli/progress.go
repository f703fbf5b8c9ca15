package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/muster-cloud/muster/client"
)

// progress tells how something gets on: on a terminal one line that is
// rewritten, elsewhere a line for each new status.
type progress struct {
	w       io.Writer
	live    bool
	began   time.Time
	cancel  context.CancelFunc
	stopped chan struct{}

	mu   sync.Mutex
	text string
}

const progressPause = 250 * time.Millisecond

// startProgress begins to tell, with how it is now; stop ends it and waits.
func startProgress(ctx context.Context, w io.Writer, text string) *progress {
	ctx, cancel := context.WithCancel(ctx)
	p := &progress{w: w, live: isTerminal(w), began: time.Now(), cancel: cancel, stopped: make(chan struct{})}
	p.show(text)
	go p.tick(ctx)
	return p
}

// instanceProgress says how an instance gets on.
func instanceProgress(i *client.Instance) string {
	text := fmt.Sprintf("%s %s", i.ID, i.Status)
	if node := nodeOf(i); node != "" {
		text += " on " + node
	}
	if i.StatusReason != "" {
		text += ": " + i.StatusReason
	}
	return text
}

// show says how it is now.
func (p *progress) show(text string) {
	text = oneLine(text)
	p.mu.Lock()
	defer p.mu.Unlock()
	if text == p.text || strings.HasPrefix(p.text, text+":") { // what went is only the reason
		return
	}
	p.text = text
	if !p.live {
		_, _ = fmt.Fprintln(p.w, text)
	}
}

// tick keeps the seconds on a terminal going.
func (p *progress) tick(ctx context.Context) {
	defer close(p.stopped)
	if !p.live {
		return
	}
	ticker := time.NewTicker(progressPause)
	defer ticker.Stop()
	for {
		p.draw()
		select {
		case <-ctx.Done():
			_, _ = fmt.Fprint(p.w, "\r\x1b[K")
			return
		case <-ticker.C:
		}
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := fmt.Sprintf("%s (%ds)", p.text, int(time.Since(p.began).Seconds()))
	_, _ = fmt.Fprint(p.w, "\r\x1b[K", cut(text, columnsOf(p.w)-1))
}

// stop takes the line away again.
func (p *progress) stop() {
	p.cancel()
	<-p.stopped
}

// cut shortens text to so many characters, since a line that wraps could not be
// rewritten.
func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:max(most, 0)])
	}
	return text
}
