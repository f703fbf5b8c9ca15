package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
)

// probe asks the server's own port whether an agent would be heard: through the
// listener, its limit of connections and the HTTP server, on a connection of its
// own each time.
type probe struct {
	addresses []string // tried in turn until one can be connected to
	scheme    string
	client    *http.Client
}

// newProbe makes one; a is nil where there is no TLS.
func newProbe(listening net.Addr, a *authority) *probe {
	p := &probe{addresses: waysTo(listening), scheme: "http"}
	transport := &http.Transport{DisableKeepAlives: true}
	if a != nil {
		p.scheme, transport.TLSClientConfig = "https", a.party().CallServer()
	}
	p.client = &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     transport,
	}
	return p
}

// waysTo are the addresses that this machine reaches a listener at: its own, or
// those of loopback when it listens everywhere.
func waysTo(listening net.Addr) []string {
	at, err := netip.ParseAddrPort(listening.String())
	if err != nil || !at.Addr().IsUnspecified() {
		return []string{listening.String()}
	}
	ways := []string{netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port()).String()}
	if at.Addr().Is6() {
		ways = append(ways, netip.AddrPortFrom(netip.IPv6Loopback(), at.Port()).String())
	}
	return ways
}

// ask returns why an agent would not be heard; nil: it would. ctx bounds it.
func (p *probe) ask(ctx context.Context) (err error) {
	for _, address := range p.addresses {
		if err = p.askAt(ctx, address); err == nil {
			return nil
		}
	}
	return err
}

func (p *probe) askAt(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.scheme+"://"+address+"/healthz", nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", address, err)
	}
	request.Host = "localhost" // always served, whatever the address
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, maxAgentAnswer)); err != nil {
		return fmt.Errorf("read the answer of %s: %w", address, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", address, response.Status)
	}
	return nil
}
