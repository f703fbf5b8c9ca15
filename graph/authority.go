package graph

import (
	"context"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
)

func (r *queryResolver) CertificateAuthorities(context.Context) ([]*muster.CertificateAuthority, error) {
	return r.registry.Authorities(), nil
}

func (r *mutationResolver) RotateCertificateAuthority(ctx context.Context, input generated.RotateCertificateAuthorityInput) (*generated.RotateCertificateAuthorityPayload, error) {
	all, revision, err := r.registry.RotateAuthority(ctx, value(input.Pin))
	if err != nil {
		return nil, err
	}
	return &generated.RotateCertificateAuthorityPayload{CertificateAuthorities: all, Revision: revision}, nil
}
