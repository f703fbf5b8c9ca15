package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/Khan/genqlient/graphql"
	"github.com/cenkalti/backoff/v5"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// DefaultURL is where a server listens by default.
const DefaultURL = "http://127.0.0.1:9000"

// maxAnswer bounds what is read of one answer, in bytes: a page of 100 objects
// is far below it.
const maxAnswer = 32 << 20

// Options are the settings of a Client; the zero value works.
type Options struct {
	URL       string          // of the server, http or https; ws and wss mean the same; without a path, /graphql is meant; default DefaultURL
	Key       string          // the access key, or join token, to present; default none
	Trust     TrustFunc       // whom to take for the server, by https; default the authorities of the system, by the URL's name
	UserAgent string          // default "muster-client"
	Timeout   time.Duration   // of one try of a call, and of a watch's connecting; default 10 s
	Within    time.Duration   // of a call with all of its tries; default as long as its context lasts
	Tries     uint            // how often at most a call that is safe to repeat is tried; default 4
	Transport *http.Transport // its dialer, proxy and TLS settings serve watches too; default one with the proxies of the environment
}

// TrustFunc returns whom to trust. It is asked at each new connection, so that it may learn
// of a new authority. It is safe for concurrent use.
type TrustFunc = func() auth.Trust

// Client talks to one server. Its methods are safe for concurrent use.
type Client struct {
	endpoint *url.URL
	options  Options
	api      graphql.Client
}

// New returns a client and connects to nothing. A URL that cannot be one is
// INVALID.
func New(o Options) (*Client, error) {
	if o.URL == "" {
		o.URL = DefaultURL
	}
	endpoint, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.UserAgent == "" {
		o.UserAgent = "muster-client"
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Tries == 0 {
		o.Tries = 4
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: o.Trust == nil, IdleConnTimeout: 90 * time.Second}
	}
	if o.Trust != nil {
		o.Transport = o.Transport.Clone()
		o.Transport.TLSClientConfig = o.verify()
	}
	c := &Client{endpoint: endpoint, options: o}
	c.api = graphql.NewClient(endpoint.String(), doer{c})
	return c, nil
}

// verify is how the server is verified.
func (o Options) verify() *tls.Config {
	if trust := o.Trust(); !trust.OfCluster() {
		return auth.CallNamed(trust.Roots)
	}
	return auth.Party{Trust: o.Trust}.CallServer()
}

// parseURL reads the address of a server. INVALID: it cannot be one.
func parseURL(text string) (*url.URL, error) {
	endpoint, err := url.Parse(text)
	if err == nil {
		if scheme, ok := map[string]string{"ws": "http", "wss": "https"}[endpoint.Scheme]; ok {
			endpoint.Scheme = scheme
		}
	}
	if err != nil || endpoint.Host == "" || (endpoint.Scheme != "http" && endpoint.Scheme != "https") {
		return nil, muster.InvalidField("url", "%q is not the address of a server: use one such as %s", text, DefaultURL)
	}
	if endpoint.Path == "" || endpoint.Path == "/" {
		endpoint.Path = "/graphql"
	}
	return endpoint, nil
}

// URL is the endpoint that calls go to.
func (c *Client) URL() string { return c.endpoint.String() }

// Close closes the connections that are idle. Calls in flight and watches go on.
func (c *Client) Close() error {
	c.options.Transport.CloseIdleConnections()
	return nil
}

// header is what every request carries, calls and watches alike.
func (c *Client) header() http.Header {
	h := http.Header{"User-Agent": {c.options.UserAgent}}
	if c.options.Key != "" {
		h.Set("Authorization", c.authorization())
	}
	return h
}

func (c *Client) authorization() string { return "Bearer " + c.options.Key }

// doer sends genqlient's requests.
type doer struct{ c *Client }

func (d doer) Do(req *http.Request) (*http.Response, error) {
	for name, values := range d.c.header() {
		req.Header[name] = values
	}
	req.Header.Set("Accept", "application/json")
	// A key is for this server: it does not follow to where the server says.
	httpClient := http.Client{Transport: d.c.options.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, err
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	return resp, nil
}

// call is one operation: what genqlient generated, and the object of its answer.
type call[T any] func(context.Context, graphql.Client) (*T, error)

// once makes one try of a call, within the timeout. Its answer is never nil
// without an error.
func once[T any](ctx context.Context, c *Client, do call[T]) (*T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	answer, err := do(ctx, c.api)
	if err != nil {
		return nil, c.fromCall(err)
	}
	if answer == nil {
		return nil, &muster.Error{Code: muster.Internal, Message: fmt.Sprintf("%s answered without what was asked for: see its log", c.endpoint)}
	}
	return answer, nil
}

// repeat makes a call that is safe to repeat, and repeats it while the server
// is UNAVAILABLE.
func repeat[T any](ctx context.Context, c *Client, do call[T]) (*T, error) {
	if c.options.Within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.options.Within)
		defer cancel()
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 2*time.Second
	var last error
	answer, err := backoff.Retry(ctx, func() (*T, error) {
		answer, err := once(ctx, c, do)
		if last = err; err != nil && muster.CodeOf(err) != muster.Unavailable {
			return nil, backoff.Permanent(err)
		}
		return answer, err
	}, backoff.WithBackOff(pause), backoff.WithMaxTries(c.options.Tries))
	if err != nil {
		return nil, last // not Retry's own wrapping of it, nor the bare end of ctx
	}
	return answer, nil
}

// missing makes an error of an answer without the object that was asked for.
func missing(format string, args ...any) error {
	return &muster.Error{Code: muster.NotFound, Message: fmt.Sprintf(format, args...)}
}
