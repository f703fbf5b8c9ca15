package sim

import (
	"crypto/rand"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// Label is what everything of a simulation carries; its value is the prefix.
const Label = "muster-sim"

// The defaults of Options.
const (
	DefaultNodes       = 100
	DefaultListen      = "127.0.0.1"
	DefaultParallel    = 16
	DefaultConnections = 64
)

// Options are the settings of a simulation. The zero value works.
type Options struct {
	// Server is how the server is reached, and with which key; default that of package
	// client, without one. With one, of an ADMIN, the agents get a key of their own.
	Server      client.Options
	Nodes       int           // hollow nodes; 0: DefaultNodes
	Instances   int           // launched for each node; 0: none
	Prefix      string        // of the nodes' names; default "sim-" and four random letters
	Listen      string        // the IP address of the agents, which the server's nudges come to; default DefaultListen
	Ramp        time.Duration // within which the agents begin, spread evenly; 0: at once
	Jitter      time.Duration // each beat is held back by up to so much; 0: not at all
	Parallel    int           // launches and terminations at once; 0: DefaultParallel
	Connections int           // of the agents' client at most; 0: DefaultConnections
	Churn       float64       // instances a second that are replaced, those that have ended first; 0: none
	Lifetime    time.Duration // the average after which an instance ends by itself; 0: never
	Duration    time.Duration // how long it runs; 0: until the context ends
	Clean       bool          // at the end terminate the instances and take the nodes out
	Version     string        // of the agents; default empty
	Logger      *slog.Logger  // of the agents; default none

	// Each is called once a second with how things are; default nothing.
	Each func(Second)
}

func (o Options) withDefaults() Options {
	orElse(&o.Nodes, DefaultNodes)
	orElse(&o.Listen, DefaultListen)
	orElse(&o.Parallel, DefaultParallel)
	orElse(&o.Connections, DefaultConnections)
	if o.Prefix == "" {
		o.Prefix = "sim-" + strings.ToLower(rand.Text()[:4])
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Each == nil {
		o.Each = func(Second) {}
	}
	return o
}

func orElse[T comparable](field *T, fallback T) {
	var zero T
	if *field == zero {
		*field = fallback
	}
}

// validate refuses what could not work; the fields are the names of flags.
func (o *Options) validate() error {
	for flag, n := range map[string]int{"nodes": o.Nodes, "parallel": o.Parallel, "connections": o.Connections} {
		if n <= 0 {
			return muster.InvalidField(flag, "%d is not positive; give one that is, or leave it out for the default", n)
		}
	}
	if ip := net.ParseIP(o.Listen); ip == nil || ip.IsUnspecified() {
		return muster.InvalidField("listen", "%.80q is no IP address that the server could reach the agents at; give one of this machine", o.Listen)
	}
	if o.Churn != 0 && (o.Churn < 0.001 || o.Churn > 1000) {
		return muster.InvalidField("churn", "%g a second is not between 0.001 and 1000; leave it out for none", o.Churn)
	}
	if o.Instances < 0 {
		return muster.InvalidField("instances", "%d is negative; give 0 for none", o.Instances)
	}
	for flag, d := range map[string]time.Duration{"ramp": o.Ramp, "beat-jitter": o.Jitter, "lifetime": o.Lifetime, "duration": o.Duration} {
		if d < 0 {
			return muster.InvalidField(flag, "%s is negative; leave it out", d)
		}
	}
	return muster.CheckName("prefix", o.Prefix)
}
