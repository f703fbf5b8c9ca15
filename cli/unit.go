package cli

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// asUnit runs what serves on an address and, where systemd runs this process as a unit of Type=notify, tells it when
// that is ready, that it is well, and when it stops. Elsewhere it only runs it.
func asUnit(ctx context.Context, log *slog.Logger, run func(ctx context.Context, ready func(net.Addr)) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serving := make(chan net.Addr, 1)
	var telling sync.WaitGroup
	telling.Go(func() {
		select {
		case at := <-serving:
			tellSystemd(ctx, log, "http://"+reachable(at)+"/healthz")
		case <-ctx.Done():
		}
	})
	err := run(ctx, func(at net.Addr) { serving <- at })
	stop()
	telling.Wait()
	return err
}

// tellSystemd tells about what serves a URL until ctx ends.
func tellSystemd(ctx context.Context, log *slog.Logger, url string) {
	told, err := daemon.SdNotify(false, daemon.SdNotifyReady)
	if err != nil {
		log.Warn("systemd cannot be told that this is ready", "err", err)
	}
	if !told {
		return
	}
	defer func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }() // it is about to see that
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("systemd's watchdog cannot be understood", "err", err)
	}
	if interval <= 0 {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := answers(ctx, url, interval/3); err != nil {
			log.Warn("this does not answer itself, so that systemd's watchdog will restart it", "err", err)
			continue
		}
		if _, err := daemon.SdNotify(false, daemon.SdNotifyWatchdog); err != nil {
			log.Warn("systemd's watchdog cannot be told", "err", err)
		}
	}
}

// answers asks over a connection of its own; any answer will do.
func answers(ctx context.Context, url string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, response.Body, 1<<10) // it has answered
	return response.Body.Close()
}
