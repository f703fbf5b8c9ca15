package agent

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/muster-cloud/muster"
)

const (
	// The memory that a node keeps for itself: a tenth, and at least this, in MiB.
	leastReserve = 256
	reservePart  = 10
)

// fill completes options from the host.
func (o *Options) fill() error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the hostname: %w", err)
	}
	o.hostname = hostname
	if err := o.name(); err != nil {
		return err
	}
	if o.CPUs <= 0 {
		o.CPUs = runtime.NumCPU()
	}
	if o.MemoryMB <= 0 {
		if o.MemoryMB, err = offeredMemory(); err != nil {
			return err
		}
	}
	if o.BootID == "" {
		text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return fmt.Errorf("read the id of this boot: %w", err)
		}
		o.BootID = strings.TrimSpace(string(text))
	}
	return nil
}

// name settles the node's id. One that joined keeps the name that its key is for, also
// where the hostname is another by now. CONFLICT: another agent is at work as that node.
func (o *Options) name() error {
	if o.Credentials != nil && o.Credentials.NodeID() != "" {
		joined := o.Credentials.NodeID()
		if o.ID != "" && o.ID != joined {
			if AtWork(o.StateDir) {
				return inUse(o.StateDir) // it is another agent that is meant, not another name
			}
			return muster.InvalidField("id", "this machine joined as node %s, not as %s: leave --id out; for another name run muster node forget %s, and let it join anew", joined, o.ID, joined)
		}
		o.ID = joined
	}
	if o.ID == "" {
		o.ID = muster.NodeID(o.hostname)
	}
	return nil
}

// offeredMemory is the host's total less the reserve, in MiB.
func offeredMemory() (int, error) {
	total, err := memory("MemTotal")
	if err != nil {
		return 0, fmt.Errorf("%w; give the memory to offer with --memory", err)
	}
	return max(total-max(total/reservePart, leastReserve), 1), nil
}

// memory reads a line of /proc/meminfo, in MiB.
func memory(name string) (int, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != name+":" {
			continue
		}
		kib, err := strconv.Atoi(fields[1])
		if err != nil {
			return 0, fmt.Errorf("read the host's memory: %w", err)
		}
		return kib / 1024, nil
	}
	return 0, fmt.Errorf("read the host's memory: /proc/meminfo has no %s", name)
}

// reachedAt is the address and port that the node registers with.
func (o *Options) reachedAt(listening net.Addr) (string, int, error) {
	host, text, err := net.SplitHostPort(listening.String())
	if err != nil {
		return "", 0, fmt.Errorf("the agent's address %s: %w", listening, err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return "", 0, fmt.Errorf("the agent's address %s: %w", listening, err)
	}
	if o.AdvertisePort != 0 {
		port = o.AdvertisePort
	}
	if o.Advertise != "" {
		return o.Advertise, port, nil
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		return "", 0, muster.InvalidField("advertise", "listening on %s says nothing about where the node is reached: give its address with --advertise-addr", listening)
	}
	return host, port, nil
}
