package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"
)

// The formats of -o.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

// format is the value of -o.
type format string

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "FORMAT" }

// Set takes one of the formats.
func (f *format) Set(text string) error {
	switch text {
	case formatTable, formatJSON, formatYAML:
		*f = format(text)
		return nil
	}
	return fmt.Errorf("it is none of table, json, yaml")
}

// write prints value as json or yaml, and otherwise what table prints.
func (a *app) write(value any, table func(w io.Writer)) error {
	switch a.format {
	case formatJSON:
		return writeJSON(a.std.Out, value)
	case formatYAML:
		return writeYAML(a.std.Out, value)
	}
	table(a.std.Out)
	return nil
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// writeYAML goes through JSON, so that both have the same names and the same order.
func writeYAML(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	text, err = yaml.JSONToYAML(text)
	if err != nil {
		return fmt.Errorf("encode the answer as yaml: %w", err)
	}
	_, err = w.Write(text)
	return err
}

// fields prints the fields of one object, a line each; those without a value are left out.
func fields(w io.Writer, paint func(string) string, pairs ...string) {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, len(pairs[i]))
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			_, _ = fmt.Fprintf(w, "%-*s  %s\n", width+1, pairs[i]+":", paint(oneLine(pairs[i+1])))
		}
	}
}

// paint colours a status word, also one with more in brackets behind it; other
// text comes back as it is.
func paint(cell string) string {
	const green, yellow, red, plain = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
	word, more := cell, ""
	if at := strings.Index(cell, " ("); at > 0 {
		word, more = cell[:at], cell[at:]
	}
	switch word {
	case "HEALTHY", "RUNNING", "CLEAR", "OK", "ACTIVE", "DONE":
		return green + word + plain + more
	case "PENDING", "PROVISIONING", "STOPPING", "TERMINATING", "DEGRADED", "HOLDS", "WARN", "WARNING", "DEPLOYING", "RESTARTING", "REMOVING":
		return yellow + word + plain + more
	case "UNHEALTHY", "CRITICAL", "FAILED", "LOST", "UNKNOWN", "PRUNED", "REMOVED", "FAIL", "EXPIRED", "REVOKED", "UNAUTHENTICATED", "FORBIDDEN":
		return red + word + plain + more
	}
	return cell
}

func unpainted(cell string) string { return cell }

// painter returns paint where colour is welcome: a terminal, and nobody said no.
func (a *app) painter() func(string) string {
	quiet, _ := a.std.LookupEnv("NO_COLOR")
	kind, _ := a.std.LookupEnv("TERM")
	if a.noColor || quiet != "" || kind == "dumb" || !isTerminal(a.std.Out) {
		return unpainted
	}
	return paint
}

// isTerminal reports whether a reader or a writer is one.
func isTerminal(end any) bool {
	file, ok := end.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// columnsOf is how wide a terminal is; 80 when it does not say.
func columnsOf(w io.Writer) int {
	if file, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return 80
}

// oneLine makes text safe for one line of a terminal: nothing in it can move the
// cursor or break the line.
func oneLine(text string) string { return safe(text, "") }

// safe replaces the control characters that are not in keep.
func safe(text, keep string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && !strings.ContainsRune(keep, r) {
			return '·'
		}
		return r
	}, text)
}

// ago says how long ago t was, in the largest unit that says enough.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// collect reads a sequence to its end, or to its first error.
func collect[T any](sequence iter.Seq2[*T, error]) ([]*T, error) {
	list := []*T{}
	for item, err := range sequence {
		if err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	return list, nil
}

// pairs writes a map as sorted k=v.
func pairs(m map[string]string) string {
	list := make([]string, 0, len(m))
	for k, v := range m {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// moment is a time for people, empty when there is none.
func moment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339)
}

// number is a number for people, empty when there is none.
func number(n *int) string {
	if n == nil {
		return ""
	}
	return strconv.Itoa(*n)
}
