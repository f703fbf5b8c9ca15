package muster_test

import (
	"testing"

	"github.com/muster-cloud/muster"
)

// FuzzParseCursor: what is accepted is written the same again, so that no two
// texts are one place; the rest is INVALID.
func FuzzParseCursor(f *testing.F) {
	for _, c := range []muster.Cursor{
		{Epoch: "0123456789abcdef", Position: muster.Position{Revision: 7, Tag: "fedcba9876543210"}},
		{Epoch: "0000000000000000", Position: muster.Position{Revision: 1<<63 - 1, Tag: "0000000000000000"}},
		{Epoch: "ffffffffffffffff"},
		{},
	} {
		f.Add(c.String())
	}
	f.Add("")
	f.Add("AQAAAAAAAACqAAAAAAAAAAAAAAAAAAAAAQ") // a batch without a revision
	f.Add("AQAAAAAAAACq__________8AAAAAAAAAAQ") // below 0
	f.Add("AQAAAAAAAACqAAAAAAAAAAUAAAAAAAAABR") // bits that mean nothing
	f.Fuzz(func(t *testing.T, text string) {
		c, err := muster.ParseCursor(text)
		if err != nil {
			if muster.CodeOf(err) != muster.Invalid || c != (muster.Cursor{}) {
				t.Fatalf("%q gave %+v, %v", text, c, err)
			}
			return
		}
		if again := c.String(); again != text || c.Revision < 0 {
			t.Fatalf("%q is %+v, which is written %q", text, c, again)
		}
	})
}
