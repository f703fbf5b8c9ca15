package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/muster-cloud/muster/graph/transport"
	"github.com/muster-cloud/muster/registry"
	"github.com/muster-cloud/muster/registry/images"
	"github.com/muster-cloud/muster/registry/store"
	"github.com/muster-cloud/muster/registry/watch"
)

// The limits of HTTP. A WebSocket has its own, which the transport sets.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 60 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
	// drainTimeout bounds the time from being asked to stop to the registry's stop.
	drainTimeout = 10 * time.Second
)

// Server is the control plane of one cluster.
type Server struct {
	options   Options
	log       *slog.Logger
	listener  *cappedListener
	store     *store.Store
	hub       *watch.Hub
	registry  *registry.Registry
	images    *images.Store
	transport *transport.Handler
	agents    *agents
	door      *doorman
	execs     execs
	discovery *discovery
	authority *authority        // nil: no TLS
	given     *givenCertificate // nil: none of the operator's own
	http      *http.Server
	fresh     freshConns

	stopping atomic.Bool
	closing  func() error
	quit     chan struct{} // closed by Close
	serving  chan struct{} // closed once it serves, its first key made

	mu      sync.Mutex
	closed  bool
	running chan struct{} // closed at the end of Run; nil before it
}

// Open takes the listening address, then the data directory, and loads the
// state. Nothing is served before Run. When it fails it has given back what it
// took; errors are *muster.Error wherever a person can do something about them.
func Open(ctx context.Context, o Options) (*Server, error) {
	o = o.withDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := checkKeyless(o); err != nil {
		return nil, err
	}
	listener, err := listen(o.Listen)
	if err != nil {
		return nil, err
	}
	s := &Server{
		options: o, log: o.Logger, quit: make(chan struct{}), serving: make(chan struct{}),
		listener: newCappedListener(listener, o.MaxConnections),
	}
	if o.servesTLS() {
		s.authority = &authority{dir: filepath.Join(o.DataDir, authorityDir), names: o.tlsNames(), log: o.Logger, now: o.Now}
	}
	s.agents = newAgents(s.authority)
	s.closing = sync.OnceValue(s.close)
	if err := s.assemble(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// assemble builds what stands on what: store, hub, registry, schema, transport, routes.
func (s *Server) assemble(ctx context.Context) (err error) {
	o := s.options
	if s.store, err = store.Open(ctx, store.Options{Dir: o.DataDir, Logger: s.log}); err != nil {
		return err
	}
	if err := s.openImages(); err != nil {
		return err
	}
	s.hub = watch.New(s.store, watch.Options{})
	rules := o.registry()
	rules.Probe = s.heard(newProbe(s.Addr(), s.authority))
	deps := registry.Deps{Store: s.store, History: s.store, Hub: s.hub, Agents: s.agents, Logger: s.log, KeysChanged: s.expel}
	if s.authority != nil {
		deps.Certificates = s.authority
	}
	s.discovery = &discovery{}
	deps.Feed = s.discovery
	s.registry, err = registry.Open(ctx, deps, rules)
	if err != nil {
		return err
	}
	if err := s.openTLS(s.registry.ServerInfo().ClusterUID); err != nil {
		return err
	}
	if err := s.discovery.open(ctx, s.registry, o); err != nil {
		return err
	}
	s.door = newDoorman(s)
	s.transport = s.graphql()
	s.http = &http.Server{
		Handler:           careful(newHosts(o.Listen, o.hostNames()).only(ownPages(o.AllowedOrigins, s.mux()))),
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState:         s.fresh.note,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return nil
}

// Addr is the address that is listened on, with the port that was taken.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// URL is where the server is reached from this machine, and by which protocol.
func (s *Server) URL() string {
	scheme := "http"
	if s.authority != nil {
		scheme = "https"
	}
	return scheme + "://" + waysTo(s.Addr())[0]
}

// Serving is closed once Run serves, and the key of the first start is in its file.
func (s *Server) Serving() <-chan struct{} { return s.serving }

// Run serves until ctx ends, Close is called or something fails, and then stops
// in the order that the package's documentation gives. It can run once.
func (s *Server) Run(ctx context.Context) error {
	running, err := s.begin()
	if err != nil {
		return err
	}
	defer close(running)
	group, failed := errgroup.WithContext(ctx)
	// The registry outlives ctx: requests in flight still need it.
	background, stopRegistry := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRegistry()
	group.Go(func() error { return s.registry.Run(background) })
	if err := s.welcome(ctx); err != nil {
		if ctx.Err() != nil { // it was stopped before it began
			err = nil
		}
		stopRegistry()
		return errors.Join(err, group.Wait())
	}
	s.registry.Listening()
	group.Go(func() error { return s.sweepImages(background) })
	group.Go(func() error { return s.discovery.run(background) })
	group.Go(s.serve)
	group.Go(func() error {
		defer stopRegistry()
		select {
		case <-failed.Done():
		case <-s.quit:
		}
		return s.drain(context.WithoutCancel(ctx))
	})
	close(s.serving)
	s.log.Info("serving", "url", s.URL(), "addr", s.Addr().String(), "data_dir", s.options.DataDir)
	defer s.log.Info("stopped")
	return group.Wait()
}

// welcome makes sure that somebody can come in.
func (s *Server) welcome(ctx context.Context) error {
	if s.options.Keyless {
		s.log.Warn("no key is asked for: every program on this machine can do everything")
		return nil
	}
	return s.ensureAdminKey(ctx)
}

// expel ends the streams and commands of those whose keys are no longer good.
func (s *Server) expel() {
	s.transport.Expel()
	s.execs.expel(s.registry.Admitted)
}

// heard asks the probe while the server means to be heard: a port that was closed
// to stop is no reason to postpone anything.
func (s *Server) heard(p *probe) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := p.ask(ctx); err != nil && !s.stopping.Load() {
			return err
		}
		return nil
	}
}

// begin marks that Run has begun; it must not be after Close, or twice.
func (s *Server) begin() (running chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.running != nil {
		return nil, fmt.Errorf("run the server: %w", http.ErrServerClosed)
	}
	s.running = make(chan struct{})
	return s.running, nil
}

func (s *Server) serve() error {
	var listener net.Listener = s.listener
	if s.authority != nil {
		listener = &secureListener{Listener: listener, config: s.serverTLS()}
	}
	err := s.http.Serve(listener)
	if s.stopping.Load() && (errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed)) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", s.Addr(), err)
}

// drain is the first half of the shutdown: 1. accept nothing new, 2. end the
// subscriptions, 3. let the requests in flight finish. Run does 4., the stop of
// the registry, which flushes, and Close does 5., the store.
func (s *Server) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	s.stopping.Store(true)
	err := s.listener.Close()
	s.execs.close()
	err = errors.Join(err, s.transport.Shutdown(ctx))
	s.fresh.close()
	if shutdownErr := s.http.Shutdown(ctx); shutdownErr != nil {
		s.log.Warn("requests were cut off: they took too long", "err", shutdownErr)
		err = errors.Join(err, s.http.Close())
	}
	return err
}

// Close stops a Run that is under way, waits for it, and gives the address and
// the data directory back. It may be called more than once.
func (s *Server) Close() error { return s.closing() }

func (s *Server) close() error {
	s.mu.Lock()
	s.closed = true
	running := s.running
	s.mu.Unlock()
	close(s.quit)
	if running != nil {
		<-running
	}
	s.agents.close()
	err := s.listener.Close()
	if s.discovery != nil {
		err = errors.Join(err, s.discovery.close())
	}
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	return err
}

// ready returns why mutations would not be taken, or nil.
func (s *Server) ready() error {
	if s.stopping.Load() {
		return errors.New("the server is stopping")
	}
	if err := s.registry.Ready(); err != nil {
		return err
	}
	return writable(s.options.DataDir)
}
