package server_test

import (
	"testing"

	"github.com/muster-cloud/muster/server"
)

func TestOptions_InsecureAt(t *testing.T) {
	for name, c := range map[string]struct {
		o    server.Options
		want string
	}{
		"everywhere":              {server.Options{Listen: "0.0.0.0:9000", Insecure: true}, "0.0.0.0:9000"},
		"everywhere, without one": {server.Options{Listen: ":9000", Insecure: true}, ":9000"},
		"an address":              {server.Options{Listen: "192.0.2.1:9000", Insecure: true}, "192.0.2.1:9000"},
		"a name":                  {server.Options{Listen: "registry.example:9000", Insecure: true}, "registry.example:9000"},
		"not asked for":           {server.Options{Listen: "0.0.0.0:9000"}, ""},
		"on loopback":             {server.Options{Listen: "127.0.0.1:9000", Insecure: true}, ""},
		"on loopback, by name":    {server.Options{Listen: "localhost:9000", Insecure: true}, ""},
		"on loopback, of IPv6":    {server.Options{Listen: "[::1]:9000", Insecure: true}, ""},
		"by TLS all the same":     {server.Options{Listen: "0.0.0.0:9000", Insecure: true, TLS: true}, ""},
		"a certificate of one's":  {server.Options{Listen: "0.0.0.0:9000", Insecure: true, TLSCert: "x"}, ""},
	} {
		if got := c.o.InsecureAt(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
