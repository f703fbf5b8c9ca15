package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/Khan/genqlient/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

// fromCall makes a *muster.Error of whatever a call over HTTP failed with.
func (c *Client) fromCall(err error) error {
	if distrusted := c.distrusted(err); distrusted != nil {
		return distrusted
	}
	if known, ok := errors.AsType[*muster.Error](err); ok {
		return known
	}
	if list, ok := errors.AsType[gqlerror.List](err); ok {
		return fromGraphQL(list)
	}
	if refused, ok := errors.AsType[*graphql.HTTPError](err); ok {
		return c.fromHTTP(refused)
	}
	if isForeign(err) {
		return &muster.Error{
			Code: muster.Internal, Err: err,
			Message: fmt.Sprintf("%s answered with something that is not muster's API (%v): check the URL", c.endpoint, err),
		}
	}
	return c.unreachable(err)
}

// distrusted makes an error of a server that did not prove who it is; nil when that is not
// what err is about. Nothing was sent to it.
func (c *Client) distrusted(err error) error {
	if known, ok := errors.AsType[*muster.Error](err); ok && known.Code == muster.Unauthenticated {
		return &muster.Error{Code: known.Code, Err: err, Message: fmt.Sprintf("cannot trust the server at %s: %s", c.endpoint, known.Message)}
	}
	if unknown, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &muster.Error{Code: muster.Unauthenticated, Err: err, Message: fmt.Sprintf(
			"cannot trust the server at %s: %v; if it is the right one, name its certificate authority (the file ca/ca.crt of its data directory)", c.endpoint, unknown.Err)}
	}
	return nil
}

// isForeign reports whether an answer came that could not be read.
func isForeign(err error) bool {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	_, large := errors.AsType[*http.MaxBytesError](err)
	return syntax || kind || large
}

// unreachable is UNAVAILABLE: it is not known whether the server saw the call.
func (c *Client) unreachable(err error) error {
	if errors.Is(err, context.Canceled) {
		return &muster.Error{Code: muster.Unavailable, Err: err, Message: "the call was given up before it was answered; it may have happened"}
	}
	return &muster.Error{
		Code: muster.Unavailable, Err: err,
		Message: fmt.Sprintf("cannot reach the server at %s: %v; is it running?", strings.TrimSuffix(c.URL(), "/graphql"), bare(err)),
	}
}

// bare is what a call failed with, without the address, which is said already.
func bare(err error) error {
	if call, ok := errors.AsType[*url.Error](err); ok {
		err = call.Err
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		err = dial.Err
		if call, ok := errors.AsType[*os.SyscallError](err); ok {
			err = call.Err
		}
	}
	return err
}

// fromGraphQL takes the first error of a list that has a code, else the first.
func fromGraphQL(list gqlerror.List) error {
	if len(list) == 0 {
		return &muster.Error{Code: muster.Internal, Message: "the server reported an error without saying which"}
	}
	i := max(0, slices.IndexFunc(list, func(e *gqlerror.Error) bool { return e != nil && e.Extensions["code"] != nil }))
	e := list[i]
	if e == nil {
		return &muster.Error{Code: muster.Internal, Message: "the server reported an error without saying which"}
	}
	code := muster.Code(text(e.Extensions["code"]))
	if !slices.Contains(muster.Codes(), code) {
		code = muster.Invalid // the server's GraphQL layer refused the document itself
		if e.Extensions["code"] != nil {
			code = muster.Internal // a code of a newer server
		}
	}
	details := maps.Clone(e.Extensions)
	delete(details, "code")
	delete(details, "field")
	if len(details) == 0 {
		details = nil
	}
	return &muster.Error{Code: code, Message: e.Message, Field: text(e.Extensions["field"]), Details: details}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// fromHTTP reads a refusal by its GraphQL errors if it has some with a code,
// else by its status.
func (c *Client) fromHTTP(refused *graphql.HTTPError) error {
	for _, e := range refused.Response.Errors {
		if e != nil && e.Extensions["code"] != nil {
			return fromGraphQL(refused.Response.Errors)
		}
	}
	reason := http.StatusText(refused.StatusCode)
	if len(refused.Response.Errors) > 0 && refused.Response.Errors[0] != nil {
		reason = firstLine(refused.Response.Errors[0].Message, reason)
	}
	return c.fromStatus(refused.StatusCode, reason)
}

// fromStatus is the table of HTTP statuses for answers that carry no code.
func (c *Client) fromStatus(status int, reason string) error {
	code, next := muster.Invalid, "check the URL"
	switch status {
	case http.StatusBadRequest:
		if strings.HasPrefix(c.URL(), "http:") { // which muster would answer with a code
			next = "check the URL; a server with TLS is at https://"
		}
	case http.StatusUnauthorized:
		code, next = muster.Unauthenticated, "present a key that is valid"
	case http.StatusForbidden:
		code, next = muster.Forbidden, "use a key with a higher role"
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		code, next = muster.Limit, "ask for less, or later"
	case http.StatusMisdirectedRequest:
		next = "use a host name that the server is configured for"
	case http.StatusRequestTimeout, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code, next = muster.Unavailable, "try again"
	case http.StatusInternalServerError:
		code, next = muster.Internal, "look into the server's log"
	}
	return &muster.Error{Code: code, Message: fmt.Sprintf("%s answered %d (%s): %s", c.endpoint, status, reason, next)}
}

// firstLine returns the start of a text that may be a whole page, or the other.
func firstLine(s, other string) string {
	const most = 200
	for i, r := range s {
		if r == '\n' || r == '<' || i > most {
			s = s[:i]
			break
		}
	}
	if s == "" {
		return other
	}
	return s
}
