package muster

// PageInput asks for a page of a list.
type PageInput struct {
	First *int    // how many, 1 to MaxPage; nil: DefaultPage
	After *string // an edge's cursor; nil: from the start
}

// The sizes of a page.
const (
	DefaultPage = 20
	MaxPage     = 100
)

// Limit returns how many are asked for, or INVALID outside of 1 to MaxPage.
func (p PageInput) Limit() (int, error) {
	if p.First == nil {
		return DefaultPage, nil
	}
	if *p.First < 1 || *p.First > MaxPage {
		return 0, InvalidField("first", "%d is not between 1 and %d; ask for less and continue with `after`", *p.First, MaxPage)
	}
	return *p.First, nil
}

// PageInfo says how to go on from a page.
type PageInfo struct {
	HasNextPage     bool
	HasPreviousPage bool
	StartCursor     *string
	EndCursor       *string
}

// NodeEdge is a node on a page.
type NodeEdge struct {
	Cursor string
	Node   *Node
}

// NodeConnection is a page of nodes. Count counts all that match, when asked.
type NodeConnection struct {
	Edges    []*NodeEdge
	PageInfo *PageInfo
	Count    func() int
}

// TotalCount is how many match in all.
func (c *NodeConnection) TotalCount() int { return c.Count() }

// InstanceEdge is an instance on a page.
type InstanceEdge struct {
	Cursor string
	Node   *Instance
}

// InstanceConnection is a page of instances. Count counts all that match, when asked.
type InstanceConnection struct {
	Edges    []*InstanceEdge
	PageInfo *PageInfo
	Count    func() int
}

// TotalCount is how many match in all.
func (c *InstanceConnection) TotalCount() int { return c.Count() }

// ChangeEdge is a change on a page.
type ChangeEdge struct {
	Cursor Cursor
	Node   *Change
}

// ChangeConnection is a page of the change log.
type ChangeConnection struct {
	Edges    []*ChangeEdge
	PageInfo *PageInfo
	Oldest   Cursor
}
