package transport

import (
	"context"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/lexer"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator/core"
	"github.com/vektah/gqlparser/v2/validator/rules"
)

// guard refuses documents and operations that cost too much: on the text before
// gqlgen parses and validates it, and on the operation before it is executed.
type guard struct {
	handler *Handler
	limits  Limits
	plans   *cache[*ast.OperationDefinition, *plan]
}

// maxPlans is how many operations' plans are remembered.
const maxPlans = 1024

func newGuard(h *Handler) *guard {
	return &guard{handler: h, limits: h.options.Limits, plans: newCache[*ast.OperationDefinition, *plan](maxPlans)}
}

// ExtensionName names the extension to gqlgen.
func (*guard) ExtensionName() string { return "Guard" }

// Validate accepts every schema.
func (*guard) Validate(graphql.ExecutableSchema) error { return nil }

// MutateOperationParameters refuses a text that is over a limit, at the cost of
// reading it once. A text whose document is kept has passed before.
func (g *guard) MutateOperationParameters(_ context.Context, p *graphql.RawParams) *gqlerror.Error {
	if _, ok := g.handler.documents.get(p.Query); ok {
		return nil
	}
	source := &ast.Source{Input: p.Query}
	if !g.fewTokens(source) {
		return g.over("tokens", g.limits.Tokens)
	}
	doc, err := parser.ParseQuery(source)
	if err != nil {
		return nil //nolint:nilerr // gqlgen parses it again and says what is wrong
	}
	m := measurer{doc: doc, fragments: map[string]*measure{}}
	for _, operation := range doc.Operations {
		total := m.selections(operation.SelectionSet)
		total.directives += len(operation.Directives)
		if limit, most, ok := g.exceeded(total); ok {
			return g.over(limit, most)
		}
	}
	return nil
}

// fewTokens counts the tokens, comments too. A text that is no GraphQL is left to
// the parser.
func (g *guard) fewTokens(source *ast.Source) bool {
	tokens := lexer.New(source)
	for range g.limits.Tokens + 1 {
		token, err := tokens.ReadToken()
		if err != nil || token.Kind == lexer.EOF {
			return true
		}
	}
	return false
}

func (g *guard) exceeded(m measure) (limit string, most int, ok bool) {
	switch l := g.limits; {
	case m.depth > l.Depth:
		return "depth", l.Depth, true
	case m.top > l.RootFields:
		return "rootFields", l.RootFields, true
	case m.fields > l.Fields:
		return "fields", l.Fields, true
	case m.aliases > l.Aliases:
		return "aliases", l.Aliases, true
	case m.directives > l.Directives:
		return "directives", l.Directives, true
	}
	return "", 0, false
}

func (g *guard) over(limit string, most int) *gqlerror.Error {
	e := g.handler.refuse(limit, "the document is over the limit of %d %s; ask for less, or in several operations", most, limit)
	return gqlerror.Wrap(e)
}

// measure is the size of a part of a document with its fragments spread.
type measure struct{ fields, depth, aliases, directives, top int }

// measurer sizes a document, each fragment once.
type measurer struct {
	doc       *ast.QueryDocument
	fragments map[string]*measure
}

// enough is where counting stops: far above every limit.
const enough = 1 << 30

func (m measure) plus(other measure) measure {
	return measure{
		fields:     min(m.fields+other.fields, enough),
		depth:      max(m.depth, other.depth),
		aliases:    min(m.aliases+other.aliases, enough),
		directives: min(m.directives+other.directives, enough),
		top:        min(m.top+other.top, enough),
	}
}

func (m *measurer) selections(set ast.SelectionSet) (total measure) {
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.Field:
			part := m.selections(s.SelectionSet)
			part.fields++
			part.depth++
			part.top = 1
			part.directives += len(s.Directives)
			if s.Alias != s.Name {
				part.aliases++
			}
			total = total.plus(part)
		case *ast.InlineFragment:
			part := m.selections(s.SelectionSet)
			part.directives += len(s.Directives)
			total = total.plus(part)
		case *ast.FragmentSpread:
			part := m.fragment(s.Name)
			part.directives += len(s.Directives)
			total = total.plus(part)
		}
	}
	return total
}

func (m *measurer) fragment(name string) measure {
	if known := m.fragments[name]; known != nil {
		return *known // zero inside of a cycle, which validation refuses
	}
	size := &measure{}
	m.fragments[name] = size
	if definition := m.doc.Fragments.ForName(name); definition != nil {
		*size = m.selections(definition.SelectionSet)
	}
	return *size
}

// validationRules are the standard ones, in the variants that don't suggest names.
func validationRules() *rules.Rules {
	r := rules.NewDefaultRules()
	for _, silent := range []core.Rule{
		rules.FieldsOnCorrectTypeRuleWithoutSuggestions,
		rules.KnownArgumentNamesRuleWithoutSuggestions,
		rules.KnownTypeNamesRuleWithoutSuggestions,
		rules.ScalarLeafsRuleWithoutSuggestions,
		rules.ValuesOfCorrectTypeRuleWithoutSuggestions,
	} {
		r.RemoveRule(strings.TrimSuffix(silent.Name, "WithoutSuggestions"))
		r.AddRule(silent.Name, silent.RuleFunc)
	}
	return r
}
