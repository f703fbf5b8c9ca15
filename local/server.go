package local

import (
	"net/netip"
	"strings"
)

// Server is a server on this machine, as it announces itself.
type Server struct {
	// Addr is what it listens on; the unspecified address is all of this machine's.
	Addr netip.AddrPort `json:"addr"`
	// KeyFile has the access key of its first start.
	KeyFile string `json:"keyFile"`
	// CAFile has the certificates to verify it by; empty: it has no TLS.
	CAFile string `json:"caFile,omitempty"`

	// Which process it is, so that another one is not taken for it.
	PID     int    `json:"pid"`
	Started uint64 `json:"started"` // in ticks since the boot
	Network string `json:"network"` // the network namespace
}

// At is where a program of this machine that wants to reach host (a name or an IP)
// reaches this server; false: host and port are not this server's. The name localhost is
// answered with the address, since somebody else may be at another one of that name.
func (s Server) At(host string, port uint16) (netip.AddrPort, bool) {
	if port != s.Addr.Port() {
		return netip.AddrPort{}, false
	}
	own := s.Addr.Addr().Unmap()
	if strings.EqualFold(host, "localhost") {
		return s.Loopback()
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	addr = addr.Unmap()
	// All addresses of IPv6 are those of IPv4 too, as Go listens. Of them only loopback
	// is known to be this machine's.
	all := own.IsUnspecified() && addr.IsLoopback() && (own.Is6() || addr.Is4())
	return netip.AddrPortFrom(addr, port), all || addr == own
}

// Loopback is where the server is reached at a loopback address; false: nowhere.
func (s Server) Loopback() (netip.AddrPort, bool) {
	own := s.Addr.Addr().Unmap()
	if own.IsUnspecified() {
		own = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.AddrPortFrom(own, s.Addr.Port()), own.IsLoopback()
}
