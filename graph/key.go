package graph

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/graph/generated"
	"github.com/muster-cloud/muster/registry"
)

func (r *queryResolver) Whoami(ctx context.Context) (*muster.AccessKey, error) {
	return r.registry.View().Key(muster.PrincipalOf(ctx).Key), nil
}

func (r *queryResolver) AccessKeys(_ context.Context, first *int, after *string) (*muster.AccessKeyConnection, error) {
	return r.registry.AccessKeys(muster.PageInput{First: first, After: after})
}

func (r *queryResolver) JoinTokens(context.Context) ([]*muster.JoinToken, error) {
	return r.registry.JoinTokens(), nil
}

func (r *queryResolver) AuditLog(ctx context.Context, filter *muster.AuditFilter, first *int, after *string) (*muster.AuditConnection, error) {
	return r.registry.Audit(ctx, filter, muster.PageInput{First: first, After: after})
}

func (r *mutationResolver) CreateAccessKey(ctx context.Context, input muster.CreateAccessKeyInput) (*generated.CreateAccessKeyPayload, error) {
	k, text, revision, err := r.registry.CreateAccessKey(ctx, input)
	if err != nil {
		return nil, err
	}
	out := &generated.CreateAccessKeyPayload{AccessKey: k, Revision: revision}
	if text != "" {
		out.Text = &text
	}
	return out, nil
}

func (r *mutationResolver) RevokeAccessKey(ctx context.Context, input generated.RevokeAccessKeyInput) (*generated.RevokeAccessKeyPayload, error) {
	k, revision, err := r.registry.RevokeAccessKey(ctx, muster.KeyID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.RevokeAccessKeyPayload{AccessKey: k, Revision: revision}, nil
}

func (r *mutationResolver) RotateAccessKey(ctx context.Context, input generated.RotateAccessKeyInput) (*generated.RotateAccessKeyPayload, error) {
	k, text, revision, err := r.registry.RotateAccessKey(ctx, muster.KeyID(input.ID), value(input.Overlap))
	if err != nil {
		return nil, err
	}
	return &generated.RotateAccessKeyPayload{AccessKey: k, Text: text, Revision: revision}, nil
}

func (r *mutationResolver) CreateJoinToken(ctx context.Context, input muster.CreateJoinTokenInput) (*generated.CreateJoinTokenPayload, error) {
	t, text, revision, err := r.registry.CreateJoinToken(ctx, input)
	if err != nil {
		return nil, err
	}
	return &generated.CreateJoinTokenPayload{JoinToken: t, Text: text, Revision: revision}, nil
}

func (r *mutationResolver) RevokeJoinToken(ctx context.Context, input generated.RevokeJoinTokenInput) (*generated.RevokeJoinTokenPayload, error) {
	t, revision, err := r.registry.RevokeJoinToken(ctx, muster.TokenID(input.ID))
	if err != nil {
		return nil, err
	}
	return &generated.RevokeJoinTokenPayload{JoinToken: t, Revision: revision}, nil
}

func (r *mutationResolver) JoinNode(ctx context.Context, input muster.JoinNodeInput) (*muster.Joined, error) {
	return r.registry.JoinNode(ctx, input)
}

func (r *mutationResolver) RenewCertificate(ctx context.Context, input generated.RenewCertificateInput) (*muster.Certificates, error) {
	return r.registry.RenewCertificate(ctx, input.Csr)
}

func (r *mutationResolver) CreateSignIn(ctx context.Context, input generated.CreateSignInInput) (*generated.CreateSignInPayload, error) {
	ttl := registry.DefaultSignInTTL
	if input.TTL != nil {
		ttl = *input.TTL
	}
	code, expires, err := r.registry.CreateSignIn(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return &generated.CreateSignInPayload{Path: "/playground/#" + code, ExpiresAt: expires}, nil
}

func (r *accessKeyResolver) Status(_ context.Context, k *muster.AccessKey) (muster.KeyStatus, error) {
	return r.registry.KeyStatus(k), nil
}

func (r *accessKeyResolver) LastUsedAt(_ context.Context, k *muster.AccessKey) (*time.Time, error) {
	return r.registry.LastUsed(k), nil
}

// Role is null when the token leaves it to the agents.
func (r *joinTokenResolver) Role(_ context.Context, t *muster.JoinToken) (*muster.NodeRole, error) {
	if t.Role == "" {
		return nil, nil
	}
	return &t.Role, nil
}
