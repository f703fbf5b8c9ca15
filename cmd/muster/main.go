// Command muster is the registry of a small cloud; see `muster --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/muster-cloud/muster/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(cli.Main(ctx, os.Args[1:], cli.OS()))
}
