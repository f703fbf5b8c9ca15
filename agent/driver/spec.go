package driver

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/muster-cloud/muster"
)

var (
	hostLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	variable  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Validate refuses a specification that no driver could launch, with an
// INVALID error that names the field.
func (s *Spec) Validate() error {
	for field, name := range map[string]string{"machine": s.Machine, "disk": s.Disk} {
		if !hostLabel.MatchString(name) {
			return muster.InvalidField(field, "%.80q is no name for it; use 1 to 63 of a-z, 0-9 and hyphens", name)
		}
	}
	if err := muster.CheckName("hostname", s.Hostname); err != nil {
		return err
	}
	if err := muster.CheckName("image", s.Image); err != nil {
		return err
	}
	if s.ImageDigest != "" {
		if err := muster.CheckDigest("imageDigest", s.ImageDigest); err != nil {
			return err
		}
	}
	switch {
	case s.CPUPercent < 1:
		return muster.InvalidField("cpuPercent", "%d is no quota; give per cent of a core, such as 25", s.CPUPercent)
	case s.MemoryMB < 1 || s.MemoryMB > muster.MaxMemoryMB:
		return muster.InvalidField("memoryMb", "%d is not between 1 and %d", s.MemoryMB, muster.MaxMemoryMB)
	case len(s.Command) > 0 && s.Command[0] == "":
		return muster.InvalidField("command", "its first word is empty; leave command out for the image's own")
	}
	if err := muster.CheckVolumeMounts("volumes", s.Volumes); err != nil {
		return err
	}
	if err := muster.CheckDiskLimit("diskLimitMb", s.DiskLimitMB); err != nil {
		return err
	}
	return s.validateText()
}

func (s *Spec) validateText() error {
	for _, word := range s.Command {
		if strings.ContainsRune(word, 0) {
			return muster.InvalidField("command", "a word has a NUL")
		}
	}
	for name, value := range s.Env {
		if !variable.MatchString(name) {
			return muster.InvalidField("env", "%.80q cannot be a variable; use letters, digits and underscores, a digit not first", name)
		}
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
			return muster.InvalidField("env", "the value of %s has a NUL or is not valid UTF-8", name)
		}
	}
	_, _, err := s.Network()
	return err
}

// Network returns the machine's address with its network, and the gateway in
// that network. Both are zero for a machine without a network.
func (s *Spec) Network() (netip.Prefix, netip.Addr, error) {
	if s.Addr == "" {
		return netip.Prefix{}, netip.Addr{}, nil
	}
	addr, err := netip.ParsePrefix(s.Addr)
	if err != nil || !addr.Addr().Is4() {
		return netip.Prefix{}, netip.Addr{}, muster.InvalidField("addr", "%.80q is no IPv4 address with a prefix length, such as 10.213.0.2/24", s.Addr)
	}
	gateway, err := netip.ParseAddr(s.Gateway)
	if err != nil || !addr.Contains(gateway) || gateway == addr.Addr() {
		return netip.Prefix{}, netip.Addr{}, muster.InvalidField("gateway", "%.80q is no other address of %s", s.Gateway, addr.Masked())
	}
	return addr, gateway, nil
}

// Uses reports whether the machine sees a volume.
func (s *Spec) Uses(volume string) bool {
	return slices.ContainsFunc(s.Volumes, func(m muster.VolumeMount) bool { return m.Name == volume })
}

// Predecessor returns the machine whose disk spec takes over, nil when it
// begins with a fresh one. It is ErrExists when the machine is there already,
// or when its disk belongs to one that is live or of the same or a higher generation.
func (s *Spec) Predecessor(machines []Status) (*Status, error) {
	var found *Status
	for i := range machines {
		m := &machines[i]
		if m.Spec.Machine == s.Machine {
			return nil, fmt.Errorf("%w: %s", ErrExists, s.Machine)
		}
		if m.Spec.Disk != s.Disk {
			continue
		}
		if m.State != Exited || m.Spec.Generation >= s.Generation {
			return nil, fmt.Errorf("%w: %s, generation %d, has the disk %s", ErrExists, m.Spec.Machine, m.Spec.Generation, s.Disk)
		}
		if found == nil || found.Spec.Generation < m.Spec.Generation {
			found = m
		}
	}
	return found, nil
}
