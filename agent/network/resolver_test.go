package network_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/muster-cloud/muster/agent/network"
)

func TestResolver(t *testing.T) {
	const stub = "# made by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch home.example\n"
	for name, c := range map[string]struct {
		usual, uplink, want string
	}{
		"one that is reached":          {"search a.example\nnameserver 192.0.2.53\n", "nameserver 192.0.2.1\n", "search a.example\nnameserver 192.0.2.53\n"},
		"the stub of systemd-resolved": {stub, "nameserver 192.0.2.53\nsearch home.example\n", "nameserver 192.0.2.53\nsearch home.example\n"},
		"one on loopback beside it":    {"nameserver 127.0.0.1\nnameserver  192.0.2.53 # ours\n", "", "nameserver 192.0.2.53 # ours\n"},
		"only one on loopback":         {"nameserver 127.0.0.1\n", "", ""},
		"only by IPv6":                 {"nameserver 2001:db8::53\nnameserver fe80::1%eth0\nnameserver ::1\n", "", ""},
		"the unspecified address":      {"nameserver 0.0.0.0\n", "", ""},
		"words that are none":          {"nameserver\nnameserver here\n;nameserver 192.0.2.1\n#nameserver 192.0.2.2\n", "", ""},
		"nothing at all":               {"", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := []string{filepath.Join(t.TempDir(), "usual"), filepath.Join(t.TempDir(), "uplink"), "/nosuch"}
			for i, text := range []string{c.usual, c.uplink} {
				if err := os.WriteFile(files[i], []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := network.Resolver(files...); got != c.want {
				t.Errorf("machines get %q, want %q", got, c.want)
			}
		})
	}
}
