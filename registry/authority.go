package registry

import (
	"context"

	"github.com/muster-cloud/muster"
)

// Authorities are the cluster's certificate authorities, the newest first; none where the
// server has no TLS.
func (r *Registry) Authorities() []*muster.CertificateAuthority {
	if r.Certificates == nil {
		return []*muster.CertificateAuthority{}
	}
	return r.Certificates.Authorities()
}

// RotateAuthority replaces the certificate authority by one with a new key. CONFLICT: the
// server has no TLS, or the one that issues is not that with the pin, if one is given.
func (r *Registry) RotateAuthority(ctx context.Context, pin string) ([]*muster.CertificateAuthority, int64, error) {
	if r.Certificates == nil {
		return nil, 0, muster.Errorf(muster.Conflict, "this server has no TLS, and so no certificate authority")
	}
	if err := r.Certificates.Rotate(pin); err != nil {
		return nil, 0, err
	}
	// It is no part of the state, and is for the audit all the same.
	revision, err := r.mutate(ctx, func(View, *Writes) error { return nil })
	if err != nil {
		return nil, 0, err
	}
	return r.Certificates.Authorities(), revision, nil
}
