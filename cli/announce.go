package cli

import (
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/muster-cloud/muster/local"
	"github.com/muster-cloud/muster/server"
)

// announce has the commands of this machine find a server, and the key of its first
// start, until withdraw is called. Without a place for that they have to be told.
func (a *app) announce(s *server.Server, o server.Options, log *slog.Logger) (withdraw func()) {
	if o.Keyless {
		return func() {}
	}
	withdraw, err := a.announcement(s, o)
	if err != nil {
		log.Warn("the commands of this machine will not find the key by themselves: name it with --key-file", "file", server.AdminKeyFile(o.DataDir), "err", err)
		return func() {}
	}
	return withdraw
}

func (a *app) announcement(s *server.Server, o server.Options) (withdraw func(), err error) {
	here := local.Server{CAFile: s.CAFile()}
	if here.Addr, err = netip.ParseAddrPort(s.Addr().String()); err != nil {
		return nil, err
	}
	if here.KeyFile, err = filepath.Abs(server.AdminKeyFile(o.DataDir)); err != nil {
		return nil, err
	}
	if here.CAFile != "" {
		if here.CAFile, err = filepath.Abs(here.CAFile); err != nil {
			return nil, err
		}
	}
	return local.Announce(local.Lookup(a.std.LookupEnv), here)
}
