package drivertest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/muster-cloud/muster/agent/driver"
)

// Program is a payload of a Fake: it runs in a goroutine of the Host and
// returns the exit status. It has to return once p.Killed is closed.
type Program func(p *Process) int

// Process is a Program at work.
type Process struct {
	Spec   driver.Spec
	Term   <-chan struct{} // closed when it should stop gracefully
	Killed <-chan struct{} // closed when it has been ended by force
	Disk   *Disk

	volumes []mounted
	mu      sync.Mutex
	output  strings.Builder
}

// Print appends a line to the console.
func (p *Process) Print(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(&p.output, format+"\n", args...)
}

// Output returns the console so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// Disk is a fake disk: files by path.
type Disk struct {
	mu    sync.Mutex
	files map[string]string
}

// Write replaces a file.
func (d *Disk) Write(path, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[path] = text
}

// Read returns a file and whether it is there.
func (d *Disk) Read(path string) (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	text, ok := d.files[path]
	return text, ok
}

// Write replaces a file, on the disk or in the volume that is mounted where it is.
// False: it cannot be written there.
func (p *Process) Write(path, text string) bool {
	disk, at, readOnly := p.place(path)
	if readOnly {
		p.Print("%s: read-only file system", path)
		return false
	}
	disk.Write(at, text)
	return true
}

// Read returns a file and whether it is there.
func (p *Process) Read(path string) (string, bool) {
	disk, at, _ := p.place(path)
	return disk.Read(at)
}

func builtins() map[string]Program {
	return map[string]Program{
		"idle": func(p *Process) int {
			p.Print("ready")
			select {
			case <-p.Term:
			case <-p.Killed:
			}
			return 0
		},
		"stubborn": func(p *Process) int {
			p.Print("ready")
			<-p.Killed
			return 0
		},
		"describe": describe,
		"exit":     exit,
		"on-term": func(p *Process) int {
			p.Print("ready")
			select {
			case <-p.Term:
				return exit(p)
			case <-p.Killed:
				return 0
			}
		},
		"write": func(p *Process) int {
			if !p.Write(p.Spec.Command[1], p.Spec.Command[2]) {
				return 1
			}
			return 0
		},
		"append": func(p *Process) int {
			text, _ := p.Read(p.Spec.Command[1])
			text += p.Spec.Command[2] + "\n"
			p.Write(p.Spec.Command[1], text)
			p.Print("%s", text)
			return 0
		},
		"read": func(p *Process) int {
			text, ok := p.Read(p.Spec.Command[1])
			if !ok {
				p.Print("no such file: %s", p.Spec.Command[1])
				return 1
			}
			p.Print("%s", text)
			return 0
		},
	}
}

func describe(p *Process) int {
	p.Print("HOSTNAME=%s", p.Spec.Hostname)
	for _, name := range slices.Sorted(maps.Keys(p.Spec.Env)) {
		p.Print("%s=%s", name, p.Spec.Env[name])
	}
	return 0
}

// exit prints the third word of the command and returns the second.
func exit(p *Process) int {
	p.Print("%s", p.Spec.Command[2])
	status, err := strconv.Atoi(p.Spec.Command[1])
	if err != nil {
		p.Print("%v", err)
		return 2
	}
	return status
}
