package client

import (
	"context"
	"net/http"
	"time"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// ServerTime asks what time it is where the server is, to the second, without presenting
// a key.
func (c *Client) ServerTime(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.beside("healthz").String(), nil)
	if err != nil {
		return time.Time{}, c.fromCall(err)
	}
	httpClient := http.Client{Transport: c.options.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := httpClient.Do(request)
	if err != nil {
		return time.Time{}, c.fromCall(err)
	}
	defer response.Body.Close()
	at, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil || response.StatusCode != http.StatusOK {
		return time.Time{}, c.fromStatus(response.StatusCode, "no time was told")
	}
	return at, nil
}

// JoinNode exchanges the join token that the client presents as its Key for a node's uid,
// key and certificate. Asking again with a request of the same private key gives the same
// node. FORBIDDEN: the token was used; ALREADY_EXISTS: another machine has the name.
func (c *Client) JoinNode(ctx context.Context, input muster.JoinNodeInput) (*muster.Joined, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*muster.Joined, error) {
		answer, err := operations.JoinNode(ctx, api, input)
		if err != nil || answer.JoinNode == nil {
			return nil, err
		}
		j := answer.JoinNode
		return &muster.Joined{NodeUID: muster.NodeUID(j.NodeUid), Key: j.Key, Certificate: j.Certificate, CA: j.Ca, Revision: j.Revision}, nil
	})
}

// RenewCertificate gets a node, whose own key the client presents, a new certificate.
func (c *Client) RenewCertificate(ctx context.Context, csr string) (*muster.Certificates, error) {
	return once(ctx, c, func(ctx context.Context, api graphql.Client) (*muster.Certificates, error) {
		answer, err := operations.RenewCertificate(ctx, api, csr)
		if err != nil || answer.RenewCertificate == nil {
			return nil, err
		}
		return &muster.Certificates{Certificate: answer.RenewCertificate.Certificate, CA: answer.RenewCertificate.Ca}, nil
	})
}
