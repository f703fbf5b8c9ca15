package client

import (
	"context"
	"iter"

	"github.com/Khan/genqlient/graphql"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client/operations"
)

// What the server answers about the audit.
type (
	AuditEntry      = operations.AuditEntry
	AuditEdge       = operations.AuditEdge
	AuditConnection = operations.AuditConnection
)

// AuditLog returns a page of the attempts to change something, newest first; a nil
// filter selects all.
func (c *Client) AuditLog(ctx context.Context, filter *muster.AuditFilter, page muster.PageInput) (*AuditConnection, error) {
	return repeat(ctx, c, func(ctx context.Context, api graphql.Client) (*AuditConnection, error) {
		answer, err := operations.ListAudit(ctx, api, filter, page.First, page.After)
		if err != nil {
			return nil, err
		}
		return answer.AuditLog, nil
	})
}

// AllAudit goes through the entries that the filter selects, newest first, page by
// page. It ends with the first error.
func (c *Client) AllAudit(ctx context.Context, filter *muster.AuditFilter) iter.Seq2[*AuditEntry, error] {
	return all(func(page muster.PageInput) ([]*AuditEntry, PageInfo, error) {
		answer, err := c.AuditLog(ctx, filter, page)
		if err != nil {
			return nil, PageInfo{}, err
		}
		entries := make([]*AuditEntry, len(answer.Edges))
		for i, edge := range answer.Edges {
			entries[i] = edge.Node
		}
		return entries, answer.PageInfo, nil
	})
}
