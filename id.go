package muster

import (
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
)

// NodeID is the name that an agent chose for its node, a label for people.
type NodeID string

// NodeUID is the identity that the server issued to a node. Empty means no
// node, and is NULL in the database.
type NodeUID string

// InstanceID is an instance's identity: `i-1`, `i-2`, …
type InstanceID string

// Value writes an empty uid as NULL, so that foreign keys hold.
func (u NodeUID) Value() (driver.Value, error) {
	if u == "" {
		return nil, nil
	}
	return string(u), nil
}

// Scan reads NULL as the empty uid.
func (u *NodeUID) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*u = ""
	case string:
		*u = NodeUID(v)
	case []byte:
		*u = NodeUID(v)
	default:
		return fmt.Errorf("node uid: cannot read a %T", src)
	}
	return nil
}

// InstanceIDOf returns the id of the n-th instance.
func InstanceIDOf(n int64) InstanceID { return InstanceID("i-" + strconv.FormatInt(n, 10)) }

// Number returns n of `i-n`, and whether the id has that form.
func (id InstanceID) Number() (int64, bool) {
	digits, ok := strings.CutPrefix(string(id), "i-")
	if !ok || digits == "" || digits[0] == '0' || digits[0] == '+' || digits[0] == '-' {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	return n, err == nil
}
