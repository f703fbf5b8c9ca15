package transport

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/muster-cloud/muster"
)

// plan is what is worked out once about an operation.
type plan struct {
	cost  int
	fixed bool // the cost depends on no variable

	// Of a subscription: its root field, and the variables that say where one
	// subscriber begins and nothing else.
	root        *ast.Field
	conditional bool // a directive decides whether there is a root field
	personal    []string
	produced    bool // its events are not the change log's: see Produce
}

// MutateOperationContext refuses an operation whose answer could have too many
// fields, and lets introspection through, which is static.
func (g *guard) MutateOperationContext(_ context.Context, operation *graphql.OperationContext) *gqlerror.Error {
	operation.DisableIntrospection = false
	p := g.planOf(operation)
	cost := p.cost
	if !p.fixed {
		cost = costOf(operation.Operation, operation.Variables).total
	}
	if cost > g.limits.Complexity {
		return g.over("complexity", g.limits.Complexity)
	}
	if p.conditional {
		return gqlerror.Wrap(muster.Errorf(muster.Invalid, "the field %s of a subscription takes no directives; leave them out", p.root.Name))
	}
	return nil
}

func (g *guard) planOf(operation *graphql.OperationContext) *plan {
	if known, ok := g.plans.get(operation.Operation); ok {
		return known
	}
	cost := costOf(operation.Operation, operation.Variables)
	p := &plan{cost: cost.total, fixed: !cost.variable}
	if operation.Operation.Operation == ast.Subscription {
		p.root, p.conditional = rootField(operation.Operation.SelectionSet)
		p.personal = personalVariables(operation.Doc, operation.Operation, p.root)
		p.produced = p.root != nil && !takesCursor(p.root)
	}
	g.plans.put(operation.Operation, p, 1)
	return p
}

// coster adds up the fields that an answer may have.
type coster struct {
	variables map[string]any
	fragments map[*ast.FragmentDefinition]int
	variable  bool // a variable had a say
}

type cost struct {
	total    int
	variable bool
}

// unpagedList is how long a list is taken to be that has no `first`.
const unpagedList = 10

func costOf(operation *ast.OperationDefinition, variables map[string]any) cost {
	c := coster{variables: variables, fragments: map[*ast.FragmentDefinition]int{}}
	total := c.selections(operation.SelectionSet)
	return cost{total, c.variable}
}

func (c *coster) selections(set ast.SelectionSet) (total int) {
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.Field:
			total += c.field(s)
		case *ast.InlineFragment:
			total += c.selections(s.SelectionSet)
		case *ast.FragmentSpread:
			part, ok := c.fragments[s.Definition]
			if !ok {
				part = c.selections(s.Definition.SelectionSet)
				c.fragments[s.Definition] = part
			}
			total += part
		}
		total = min(total, enough)
	}
	return total
}

// field costs itself and its children, as often as its list may be long. The
// edges of a connection are counted at the connection, which has the `first`.
func (c *coster) field(f *ast.Field) int {
	children := c.selections(f.SelectionSet)
	times := 1
	switch {
	case f.Definition.Arguments.ForName("first") != nil:
		times = c.first(f)
	case f.Definition.Type.Elem != nil && !strings.HasSuffix(f.ObjectDefinition.Name, "Connection"):
		times = unpagedList
	}
	if children > enough/times {
		return enough
	}
	return 1 + times*children
}

// first is how long a page is. More than MaxPage is refused by the list itself,
// which says so better than the sum would.
func (c *coster) first(f *ast.Field) int {
	var value any
	if argument := f.Arguments.ForName("first"); argument != nil {
		c.variable = c.variable || argument.Value.Kind == ast.Variable
		value, _ = argument.Value.Value(c.variables)
	}
	if value == nil {
		if d := f.Definition.Arguments.ForName("first").DefaultValue; d != nil {
			value, _ = d.Value(nil)
		}
	}
	n, ok := asInt(value)
	if !ok {
		n = muster.DefaultPage
	}
	return int(max(1, min(n, muster.MaxPage)))
}

func asInt(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int64:
		return n, true
	case float64:
		return int64(n), true
	case json.Number:
		i, err := n.Int64()
		return i, err == nil
	}
	return 0, false
}

// rootField is the one field of a subscription, wherever it stands, and whether
// a directive stands on the way to it.
func rootField(set ast.SelectionSet) (root *ast.Field, conditional bool) {
	for _, selection := range set {
		var directives ast.DirectiveList
		switch s := selection.(type) {
		case *ast.Field:
			root, directives = s, s.Directives
		case *ast.InlineFragment:
			root, conditional = rootField(s.SelectionSet)
			directives = s.Directives
		case *ast.FragmentSpread:
			root, conditional = rootField(s.Definition.SelectionSet)
			directives = s.Directives
		}
		if root != nil {
			return root, conditional || len(directives) > 0
		}
	}
	return nil, false
}

// takesCursor reports whether a subscription follows the change log.
func takesCursor(root *ast.Field) bool {
	since := root.Definition.Arguments.ForName("since")
	return since != nil && since.Type.Name() == "Cursor"
}

// personalVariables are those that are the root field's `since` or `initial` and
// are used nowhere else.
func personalVariables(doc *ast.QueryDocument, operation *ast.OperationDefinition, root *ast.Field) []string {
	if root == nil {
		return nil
	}
	uses := map[string]int{}
	countVariables(uses, operation.SelectionSet)
	for _, directive := range operation.Directives {
		countArguments(uses, directive.Arguments)
	}
	for _, fragment := range doc.Fragments {
		countVariables(uses, fragment.SelectionSet)
	}
	var personal []string
	for _, name := range []string{"since", "initial"} {
		argument := root.Arguments.ForName(name)
		if argument != nil && argument.Value.Kind == ast.Variable && uses[argument.Value.Raw] == 1 {
			personal = append(personal, argument.Value.Raw)
		}
	}
	return personal
}

func countVariables(uses map[string]int, set ast.SelectionSet) {
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.Field:
			countArguments(uses, s.Arguments)
			countDirectives(uses, s.Directives)
			countVariables(uses, s.SelectionSet)
		case *ast.InlineFragment:
			countDirectives(uses, s.Directives)
			countVariables(uses, s.SelectionSet)
		case *ast.FragmentSpread:
			countDirectives(uses, s.Directives)
		}
	}
}

func countDirectives(uses map[string]int, directives ast.DirectiveList) {
	for _, d := range directives {
		countArguments(uses, d.Arguments)
	}
}

func countArguments(uses map[string]int, arguments ast.ArgumentList) {
	for _, a := range arguments {
		countValue(uses, a.Value)
	}
}

func countValue(uses map[string]int, v *ast.Value) {
	if v.Kind == ast.Variable {
		uses[v.Raw]++
	}
	for _, child := range v.Children {
		countValue(uses, child.Value)
	}
}
