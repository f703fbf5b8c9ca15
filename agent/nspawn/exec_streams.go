package nspawn

import (
	"errors"
	"io"
	"os"
	"sync"

	"github.com/muster-cloud/muster/agent/driver"
)

// pumps carry what a command reads and writes.
type pumps struct {
	streams driver.Streams
	theirs  []*os.File // the command's ends
	input   *os.File   // to the command; nil: it has none
	outputs []output
	refuse  func() // ends the command
	work    sync.WaitGroup
	ended   chan struct{} // closed when the command has

	mu     sync.Mutex
	failed error // of a writer
}

// output is what a command writes, and where it goes.
type output struct {
	from *os.File
	to   io.Writer
}

func newPumps(streams driver.Streams) *pumps {
	return &pumps{streams: streams, ended: make(chan struct{})}
}

// open makes the command's standard descriptors; a terminal comes later, in place of all.
func (p *pumps) open(terminal bool) (stdin, stdout, stderr *os.File, err error) {
	if stdin, err = p.null(); err != nil || terminal {
		return stdin, stdin, stdin, err
	}
	stdout, stderr = stdin, stdin
	if p.streams.Stdin != nil {
		if stdin, p.input, err = p.pipe(); err != nil {
			return nil, nil, nil, err
		}
	}
	if p.streams.Stdout != nil {
		if stdout, err = p.output(p.streams.Stdout); err != nil {
			return nil, nil, nil, err
		}
	}
	if p.streams.Stderr != nil {
		stderr, err = p.output(p.streams.Stderr)
	}
	return stdin, stdout, stderr, err
}

func (p *pumps) null() (*os.File, error) {
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		p.theirs = append(p.theirs, f)
	}
	return f, err
}

// pipe returns the command's end of a new pipe, to read from, and ours.
func (p *pumps) pipe() (theirs, ours *os.File, err error) {
	theirs, ours, err = os.Pipe()
	if err == nil {
		p.theirs = append(p.theirs, theirs)
	}
	return theirs, ours, err
}

func (p *pumps) output(to io.Writer) (*os.File, error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.theirs = append(p.theirs, theirs)
	p.outputs = append(p.outputs, output{ours, to})
	return theirs, nil
}

// closeTheirs lets go of the command's ends, so that what it closes is closed.
func (p *pumps) closeTheirs() {
	for _, f := range p.theirs {
		_ = f.Close()
	}
	p.theirs = nil
}

// start begins to carry. A writer that refuses ends the command.
func (p *pumps) start(refuse func()) {
	p.refuse = refuse
	for _, o := range p.outputs {
		p.work.Go(func() { p.drain(o) })
	}
	if input := p.input; input != nil {
		p.work.Go(func() {
			_, _ = io.Copy(input, p.streams.Stdin) // the command need not read all
			_ = input.Close()
		})
	}
}

// serveTerminal carries what a terminal takes and shows until the command has ended.
func (p *pumps) serveTerminal(terminal *os.File) {
	to := p.streams.Stdout
	if to == nil {
		to = io.Discard
	}
	p.work.Go(func() { p.drain(output{terminal, to}) })
	if p.streams.Stdin != nil {
		p.work.Go(func() { _, _ = io.Copy(terminal, p.streams.Stdin) })
	}
	p.work.Go(func() {
		for {
			select {
			case <-p.ended:
				return
			case size, ok := <-p.streams.Resize: // of no channel nothing ever comes
				if !ok {
					return
				}
				_ = resizeFile(terminal, size)
			}
		}
	})
}

// drain carries an output to its end, whether it is taken or not.
func (p *pumps) drain(o output) {
	defer o.from.Close()
	if _, err := io.Copy(taken{p, o.to}, o.from); err != nil {
		_, _ = io.Copy(io.Discard, o.from) // a terminal ends with an error
	}
}

// taken notes that a writer has refused.
type taken struct {
	p  *pumps
	to io.Writer
}

func (t taken) Write(text []byte) (int, error) {
	n, err := t.to.Write(text)
	if err != nil {
		t.p.mu.Lock()
		t.p.failed = errors.Join(t.p.failed, err)
		t.p.mu.Unlock()
		t.p.refuse()
	}
	return n, err
}

// wait ends what still reads and returns when all is carried: why a writer has refused.
func (p *pumps) wait() error {
	close(p.ended)
	if closer, ok := p.streams.Stdin.(io.Closer); ok {
		_ = closer.Close()
	}
	if p.refuse == nil { // nothing was started
		for _, o := range p.outputs {
			_ = o.from.Close()
		}
		if p.input != nil {
			_ = p.input.Close()
		}
	}
	p.work.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func resizeFile(terminal *os.File, size driver.Window) error {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = resize(int(fd), size) })
	return errors.Join(err, failed)
}
