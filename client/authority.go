package client

import (
	"context"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster/client/operations"
)

// CertificateAuthority is one who vouches for the server and for nodes.
type CertificateAuthority = operations.CertificateAuthority

// CertificateAuthorities returns those of the cluster, the newest first; none where the
// server has no TLS.
func (c *Client) CertificateAuthorities(ctx context.Context) ([]CertificateAuthority, error) {
	answer, err := repeat(ctx, c, operations.ListCertificateAuthorities)
	if err != nil {
		return nil, err
	}
	return answer.CertificateAuthorities, nil
}

// RotateCertificateAuthority replaces the one that issues, if it is the one with the pin,
// and returns all that there are then. CONFLICT: it is another, or there is no TLS.
func (c *Client) RotateCertificateAuthority(ctx context.Context, pin string) ([]CertificateAuthority, error) {
	answer, err := once(ctx, c, func(ctx context.Context, api graphql.Client) (*operations.RotateCertificateAuthorityResponse, error) {
		return operations.RotateCertificateAuthority(ctx, api, optional(pin))
	})
	if err != nil || answer.RotateCertificateAuthority == nil {
		return nil, err
	}
	return answer.RotateCertificateAuthority.CertificateAuthorities, nil
}
