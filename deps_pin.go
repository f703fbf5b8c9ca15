//go:build deps

package muster

import (
	_ "github.com/Khan/genqlient/graphql"
	_ "github.com/cenkalti/backoff/v5"
	_ "github.com/goccy/go-yaml"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/renameio/v2"
	_ "github.com/gorilla/websocket"
	_ "github.com/hashicorp/go-memdb"
	_ "github.com/mattn/go-sqlite3"
	_ "github.com/pressly/goose/v3"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/vikstrous/dataloadgen"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/tools/go/packages"
	_ "gorm.io/driver/sqlite"
	_ "gorm.io/gorm"
	_ "pgregory.net/rapid"
)
