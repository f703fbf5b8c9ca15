package check

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
)

const (
	bodyLimit   = 64 << 10 // of an answer that is looked at, in bytes
	shownBody   = 1 << 10  // of it in an output
	headerLimit = 64 << 10
)

// http asks once and follows no redirection: where it leads is not the service's.
func (p *Probe) http(ctx context.Context, c muster.Check) Outcome {
	scheme := "http"
	if c.TLS {
		scheme = "https"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+p.address(c)+c.Path, nil)
	if err != nil {
		return unknown(err.Error())
	}
	request.Header.Set("User-Agent", "muster-check")
	transport := &http.Transport{
		DialContext:            p.dial,
		TLSClientConfig:        &tls.Config{InsecureSkipVerify: c.SkipVerify}, //nolint:gosec // as the check says
		DisableKeepAlives:      true,
		DisableCompression:     true, // little could become much
		MaxResponseHeaderBytes: headerLimit,
	}
	began := time.Now()
	response, err := transport.RoundTrip(request)
	if err != nil {
		if named, ok := errors.AsType[*url.Error](err); ok {
			err = named.Err
		}
		return failed(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyLimit))
	if err != nil {
		return failed(fmt.Errorf("%s, and then: %w", response.Status, err))
	}
	took := time.Since(began).Round(time.Microsecond)
	return judge(c, response, string(body), took)
}

// judge compares an answer with what is expected.
func judge(c muster.Check, response *http.Response, body string, took time.Duration) Outcome {
	output := fmt.Sprintf("%s in %s\n%s", muster.Printable(response.Status, 100), took, muster.Printable(body, shownBody))
	code := response.StatusCode
	switch {
	case c.Status != 0 && code != c.Status:
		return Outcome{muster.CheckCritical, fmt.Sprintf("not %d but %s", c.Status, output)}
	case c.Status == 0 && (code < 200 || code > 399):
		return Outcome{muster.CheckCritical, output}
	case !strings.Contains(body, c.Body):
		return Outcome{muster.CheckCritical, fmt.Sprintf("%.100q is not in the answer: %s", c.Body, output)}
	}
	return Outcome{muster.CheckOK, output}
}
