package registry

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/go-memdb"

	"github.com/muster-cloud/muster"
)

// The tables and indexes of the state in memory.
const (
	tableNode      = "node"
	tableInstance  = "instance"
	tableRequest   = "request"
	tableCondition = "condition"
	tableImage     = "image"
	tableService   = "service"
	tableEntry     = "entry"
	tableKey       = "key"
	tableToken     = "token"
	tableUse       = "use"
	tableMeta      = "meta"

	byID       = "id"
	byName     = "name"
	byNode     = "node"
	byStatus   = "status"
	byInstance = "instance"
	byOwner    = "owner"
)

// key is an index over T: one key an object, made without reflection.
type key[T any] struct {
	of   func(T) []byte
	args func(args []any) ([]byte, error)
}

func (k key[T]) FromObject(object any) (bool, []byte, error) {
	b := k.of(object.(T))
	return b != nil, b, nil
}

func (k key[T]) FromArgs(args ...any) ([]byte, error) { return k.args(args) }

// text ends a string's key, so that one name is not the beginning of another.
func text[S ~string](s S) []byte { return append([]byte(s), 0) }

func textArg[S ~string](args []any) ([]byte, error) {
	s, ok := args[0].(S)
	if !ok || len(args) != 1 {
		return nil, fmt.Errorf("index: want one %T, got %v", s, args)
	}
	return text(s), nil
}

// number orders instances by the number in their id.
func number(id muster.InstanceID) []byte {
	n, ok := id.Number()
	if !ok {
		return text(id)
	}
	return binary.BigEndian.AppendUint64(nil, uint64(n))
}

func numberArg(args []any) ([]byte, error) {
	id, ok := args[0].(muster.InstanceID)
	if !ok {
		return nil, fmt.Errorf("index: want an instance id, got %v", args)
	}
	return number(id), nil
}

// sequenceNumber is n of an id such as k-n; 0 when it has another form.
func sequenceNumber(id string) int64 {
	_, digits, _ := strings.Cut(id, "-")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 {
		return 0
	}
	return n
}

// sequenced orders ids of a sequence by their number.
func sequenced(id string) []byte {
	if n := sequenceNumber(id); n > 0 {
		return append(binary.BigEndian.AppendUint64(nil, uint64(n)), id...)
	}
	return text(id)
}

func sequencedArg[S ~string](args []any) ([]byte, error) {
	s, ok := args[0].(S)
	if !ok {
		return nil, fmt.Errorf("index: want one %T, got %v", s, args)
	}
	return sequenced(string(s)), nil
}

// byBirth is the index of nodes by the hash of their agents' birth tokens.
const byBirth = "birth"

func birthOf(n *muster.Node) []byte {
	if n.BirthHash == "" {
		return nil
	}
	return text(n.BirthHash)
}

func keyNode(k *muster.AccessKey) []byte {
	if k.NodeUID == "" {
		return nil
	}
	return text(k.NodeUID)
}

func requestKey(principal, id string) []byte { return append(text(principal), id...) }

func unique(indexer memdb.Indexer) *memdb.IndexSchema {
	return &memdb.IndexSchema{Name: byID, Unique: true, Indexer: indexer}
}

func table(name string, indexes ...*memdb.IndexSchema) *memdb.TableSchema {
	t := &memdb.TableSchema{Name: name, Indexes: map[string]*memdb.IndexSchema{}}
	for _, index := range indexes {
		t.Indexes[index.Name] = index
	}
	return t
}

func schema() *memdb.DBSchema {
	tables := []*memdb.TableSchema{
		table(tableNode,
			unique(key[*muster.Node]{func(n *muster.Node) []byte { return text(n.UID) }, textArg[muster.NodeUID]}),
			&memdb.IndexSchema{Name: byName, Indexer: key[*muster.Node]{func(n *muster.Node) []byte { return text(n.ID) }, textArg[muster.NodeID]}},
			&memdb.IndexSchema{Name: byBirth, AllowMissing: true, Indexer: key[*muster.Node]{birthOf, textArg[string]}},
		),
		table(tableInstance,
			unique(key[*muster.Instance]{func(i *muster.Instance) []byte { return number(i.ID) }, numberArg}),
			&memdb.IndexSchema{Name: byNode, AllowMissing: true, Indexer: key[*muster.Instance]{nodeOf, textArg[muster.NodeUID]}},
			&memdb.IndexSchema{Name: byStatus, Indexer: key[*muster.Instance]{func(i *muster.Instance) []byte { return text(i.Status) }, textArg[muster.InstanceStatus]}},
		),
		table(tableCondition, unique(key[*muster.Condition]{func(c *muster.Condition) []byte { return text(c.Name) }, textArg[muster.ConditionName]})),
		table(tableImage, unique(key[*muster.Image]{func(i *muster.Image) []byte { return text(i.Name) }, textArg[string]})),
		table(tableService,
			unique(key[*muster.Service]{func(s *muster.Service) []byte { return sequenced(string(s.ID)) }, sequencedArg[muster.ServiceID]}),
			&memdb.IndexSchema{Name: byInstance, Indexer: key[*muster.Service]{func(s *muster.Service) []byte { return number(s.InstanceID) }, numberArg}},
		),
		table(tableEntry,
			unique(key[*muster.Entry]{func(e *muster.Entry) []byte { return text(e.Key) }, textArg[string]}),
			&memdb.IndexSchema{Name: byName, Indexer: key[*muster.Entry]{func(e *muster.Entry) []byte { return text(e.Service) }, textArg[string]}},
			&memdb.IndexSchema{Name: byOwner, AllowMissing: true, Indexer: ownerIndex{}},
		),
		table(tableKey,
			unique(key[*muster.AccessKey]{func(k *muster.AccessKey) []byte { return sequenced(string(k.ID)) }, sequencedArg[muster.KeyID]}),
			&memdb.IndexSchema{Name: byNode, AllowMissing: true, Indexer: key[*muster.AccessKey]{keyNode, textArg[muster.NodeUID]}},
		),
		table(tableToken, unique(key[*muster.JoinToken]{func(t *muster.JoinToken) []byte { return sequenced(string(t.ID)) }, sequencedArg[muster.TokenID]})),
		table(tableRequest, unique(key[*muster.Request]{
			func(r *muster.Request) []byte { return requestKey(r.Principal, r.RequestID) },
			func(args []any) ([]byte, error) { return requestKey(args[0].(string), args[1].(string)), nil },
		})),
		table(tableUse, unique(key[*use]{func(u *use) []byte { return text(u.uid) }, textArg[muster.NodeUID]})),
		table(tableMeta, unique(key[*meta]{
			func(*meta) []byte { return []byte{0} },
			func([]any) ([]byte, error) { return []byte{0}, nil },
		})),
	}
	s := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, t := range tables {
		s.Tables[t.Name] = t
	}
	return s
}

func nodeOf(i *muster.Instance) []byte {
	if i.NodeUID == "" {
		return nil
	}
	return text(i.NodeUID)
}
