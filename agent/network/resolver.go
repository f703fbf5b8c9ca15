package network

import (
	"net/netip"
	"os"
	"strings"
)

// maxResolvConf is much more than name servers need, in bytes.
const maxResolvConf = 64 << 10

// ResolvConfs are the files that tell a host's name servers: the usual one, and what systemd-resolved asks itself, for
// hosts where the usual one names its stub on loopback.
func ResolvConfs() []string { return []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} }

// Resolver returns a resolv.conf for machines: the first of the files that has a name server which they can reach, without
// those that they cannot: on the host's loopback, and by IPv6, which machines don't have. It is empty when there is no such file.
func Resolver(files ...string) string {
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil || len(text) > maxResolvConf {
			continue // not every host has each
		}
		if conf := reached(string(text)); conf != "" {
			return conf
		}
	}
	return ""
}

func reached(text string) string {
	var out strings.Builder
	servers := 0
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) < 2 || strings.ContainsAny(words[0][:1], "#;"):
			continue
		case words[0] == "nameserver":
			addr, err := netip.ParseAddr(words[1])
			if err != nil || !addr.Is4() || addr.IsLoopback() || addr.IsUnspecified() {
				continue
			}
			servers++
		}
		out.WriteString(strings.Join(words, " ") + "\n")
	}
	if servers == 0 {
		return ""
	}
	return out.String()
}
