package muster

import (
	"errors"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

// EntryFacts is what the address and the annotations of an entry may speak of, as
// templates: {{ .Node.Addr }}.
type EntryFacts struct {
	Node     *Node
	Instance *Instance
	Service  *Service
}

// FillIn fills in a text of an entry; one that is no template stays as it is. What comes
// of it is at most MaxAnnotationBytes long.
func (f EntryFacts) FillIn(field, text string) (string, error) {
	if !isTemplate(text) {
		return text, nil // as nearly all are, and the gate looks at each of them again and again
	}
	t, err := parseTemplate(field, text)
	if err != nil {
		return "", err
	}
	out := bounded{left: MaxAnnotationBytes}
	if err := t.Execute(&out, f); err != nil {
		return "", InvalidField(field, "it cannot be filled in: %v", err)
	}
	return out.text.String(), nil
}

func isTemplate(text string) bool { return strings.Contains(text, "{{") }

// checkTemplate refuses a text that is a template and cannot be one of an entry.
func checkTemplate(field, text string) error {
	if !isTemplate(text) {
		return nil
	}
	_, err := parseTemplate(field, text)
	return err
}

// parseTemplate reads a template that is done in a time and a space that follow from its
// length: the server fills it in itself, again and again, and must not be kept from its work.
func parseTemplate(field, text string) (*template.Template, error) {
	t, err := template.New("template").Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, InvalidField(field, "it is no template: %v", err)
	}
	for _, part := range t.Templates() {
		if part != t {
			return nil, InvalidField(field, "it defines a template of its own; write it out where it is used")
		}
	}
	if t.Tree == nil {
		return t, nil // nothing but a comment
	}
	if odd := oddIn(t.Root); odd != "" {
		return nil, InvalidField(field, "it has %.80q; use fields such as {{ .Node.Addr }}, if, with and else, and the functions %s", odd, strings.Join(templateFunctions(), ", "))
	}
	return t, nil
}

// templateFunctions are those whose results are no larger than what they are given.
func templateFunctions() []string {
	return []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len"}
}

// oddIn returns the first part of a template that may not be in one; empty: there is none.
func oddIn(node parse.Node) string {
	switch n := node.(type) {
	case *parse.ListNode:
		if n == nil {
			return ""
		}
		return firstOdd(n.Nodes)
	case *parse.ActionNode:
		return oddIn(n.Pipe)
	case *parse.IfNode:
		return firstOdd([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.WithNode:
		return firstOdd([]parse.Node{n.Pipe, n.List, n.ElseList})
	case *parse.PipeNode:
		if len(n.Decl) > 0 {
			return n.String()
		}
		return firstOdd(n.Cmds)
	case *parse.CommandNode:
		return firstOdd(n.Args)
	case *parse.ChainNode:
		return oddIn(n.Node)
	case *parse.IdentifierNode:
		if !slices.Contains(templateFunctions(), n.Ident) {
			return n.Ident
		}
		return ""
	case *parse.TextNode, *parse.CommentNode, *parse.FieldNode, *parse.DotNode, *parse.VariableNode,
		*parse.StringNode, *parse.NumberNode, *parse.BoolNode, *parse.NilNode:
		return ""
	}
	return node.String()
}

func firstOdd[T parse.Node](nodes []T) string {
	for _, n := range nodes {
		if odd := oddIn(n); odd != "" {
			return odd
		}
	}
	return ""
}

// bounded takes a text of a certain length at most.
type bounded struct {
	text strings.Builder
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errors.New("it becomes too long")
	}
	return b.text.Write(p)
}
