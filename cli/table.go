package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// tableGap is between two columns.
	tableGap = 3
	// leastColumn is how far a column is shortened, in characters.
	leastColumn = 10
)

// table is rows below a header, aligned in columns. On a terminal that is too
// narrow for them, the widest columns are shortened; elsewhere nothing is, and
// what people copy never.
type table struct {
	paint func(cell string) string // of a cell below the header; nil leaves it plain
	whole []int                    // the columns that are never shortened

	least map[int]int // how wide a column is at least, for rows that come later

	rows   [][]string // not printed yet
	headed bool       // the header is printed
	widths []int
	titles []int // the widths of the header's cells
}

func (t *table) add(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = oneLine(cell)
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// print writes the rows that were added since the last time, in columns at least
// as wide as before. Colour is laid on after the widths are known.
func (t *table) print(w io.Writer) {
	t.measure()
	if isTerminal(w) {
		t.fit(columnsOf(w))
	}
	for _, row := range t.rows {
		var b strings.Builder
		for i, cell := range row {
			cell = shorten(cell, t.widths[i])
			pad := t.widths[i] - utf8.RuneCountInString(cell) + tableGap
			if t.headed && t.paint != nil {
				cell = t.paint(cell)
			}
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", pad))
			}
		}
		_, _ = fmt.Fprintln(w, b.String())
		t.headed = true
	}
	t.rows = nil
}

// drop forgets the rows that were not printed, but not the header.
func (t *table) drop() {
	if t.headed {
		t.rows = nil
	} else if len(t.rows) > 0 {
		t.rows = t.rows[:1]
	}
}

func (t *table) measure() {
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(t.widths) {
				t.widths, t.titles = append(t.widths, 0), append(t.titles, utf8.RuneCountInString(cell))
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell), t.least[i])
		}
	}
}

// fit takes from the widest column, character by character, until all fit.
func (t *table) fit(columns int) {
	total := tableGap * (len(t.widths) - 1)
	for _, width := range t.widths {
		total += width
	}
	for ; total > columns; total-- {
		widest, most := -1, leastColumn
		for i, width := range t.widths {
			if width > max(most, t.titles[i]) && !slices.Contains(t.whole, i) {
				widest, most = i, width
			}
		}
		if widest < 0 {
			return
		}
		t.widths[widest]--
	}
}

// shorten leaves so many characters of text, the last one telling that there is more.
func shorten(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return cut(text, most-1) + "…"
}
