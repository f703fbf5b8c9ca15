package muster

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Position is a revision with the tag of the batch that wrote it, which tells
// one history from another that happens to have the same numbers.
type Position struct {
	Revision int64
	Tag      string // 16 hex digits; empty at revision 0
}

// Cursor is a place in one history (epoch) of the change log. To callers it is
// opaque text.
type Cursor struct {
	Epoch string // 16 hex digits
	Position
}

const (
	cursorVersion = 1
	cursorBytes   = 1 + 8 + 8 + 8
)

// String returns the opaque text: 34 characters of URL-safe base64.
func (c Cursor) String() string {
	b := make([]byte, 0, cursorBytes)
	b = append(b, cursorVersion)
	b = appendHex8(b, c.Epoch)
	b = binary.BigEndian.AppendUint64(b, uint64(c.Revision))
	b = appendHex8(b, c.Tag)
	return base64.RawURLEncoding.EncodeToString(b)
}

func appendHex8(b []byte, s string) []byte {
	var raw [8]byte
	if len(s) == 16 {
		_, _ = hex.Decode(raw[:], []byte(s))
	}
	return append(b, raw[:]...)
}

// ParseCursor reads what String wrote; anything else is INVALID.
func ParseCursor(s string) (Cursor, error) {
	if len(s) != base64.RawURLEncoding.EncodedLen(cursorBytes) {
		return Cursor{}, errCursor("it has %d characters instead of %d", len(s), base64.RawURLEncoding.EncodedLen(cursorBytes))
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil {
		return Cursor{}, errCursor("it is not base64")
	}
	if b[0] != cursorVersion {
		return Cursor{}, errCursor("its version %d is not one that this server knows", b[0])
	}
	revision := int64(binary.BigEndian.Uint64(b[9:17]))
	if revision < 0 {
		return Cursor{}, errCursor("its revision is negative")
	}
	c := Cursor{Epoch: hex.EncodeToString(b[1:9]), Position: Position{Revision: revision}}
	switch {
	case revision > 0:
		c.Tag = hex.EncodeToString(b[17:])
	case binary.BigEndian.Uint64(b[17:]) != 0:
		return Cursor{}, errCursor("it names a batch, and no revision")
	}
	return c, nil
}

func errCursor(format string, args ...any) *Error {
	return &Error{
		Code: Invalid, Field: "cursor",
		Message: "cursor: " + fmt.Sprintf(format, args...) + "; use one that this server gave, as it came",
	}
}
