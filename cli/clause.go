package cli

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// clauseKey is a key that the value of a flag such as --check can have.
type clauseKey struct {
	name string
	set  func(value string) error // the error says what is wrong with the value, and what would do
}

// readClause reads the value of a flag that has several: KEY=VALUE, separated by commas or
// blanks. A value that has these itself is quoted, as shells quote. Keys can be written in
// any case, with hyphens or without. What rest takes need not be among the keys; nil: nothing.
func readClause(flag, text string, keys []clauseKey, rest func(key, value string) bool) error {
	words, err := splitWords(text, " \t\n,")
	if err != nil {
		return usageError("%s %s: %w", flag, quote(text), err)
	}
	if len(words) == 0 {
		return usageError("%s is empty; give KEY=VALUE, with these keys: %s", flag, listed(keyNames(keys), "and"))
	}
	given := map[string]bool{}
	for _, word := range words {
		key, value, hasValue := strings.Cut(word, "=")
		if hasValue && rest != nil && rest(key, value) {
			continue
		}
		at := slices.IndexFunc(keys, func(k clauseKey) bool { return plainKey(k.name) == plainKey(key) })
		switch {
		case at < 0:
			return usageError("%s %s: there is no key %s; use %s", flag, quote(text), quote(key), listed(keyNames(keys), "or"))
		case given[keys[at].name]:
			return usageError("%s %s: %s is there twice; give one of them", flag, quote(text), keys[at].name)
		}
		given[keys[at].name] = true
		if !hasValue {
			value = bareValue
		}
		if err := keys[at].set(value); err != nil {
			return usageError("%s %s: %s: %w", flag, quote(text), keys[at].name, err)
		}
	}
	return nil
}

// bareValue stands for the value of a key without one, which no value that was written can be.
const bareValue = "\x00"

func keyNames(keys []clauseKey) []string {
	names := make([]string, len(keys))
	for i, k := range keys {
		names[i] = k.name
	}
	return names
}

func plainKey(name string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
}

// splitWords splits text into words, as shells do: a word may be quoted, in part too, by '…' or
// "…", and a backslash takes the next character as it is, but for within '…'.
func splitWords(text, separators string) (words []string, err error) {
	var word strings.Builder
	var within rune // the open quote
	inside, escaped := false, false
	for _, r := range text {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && within != '\'':
			inside, escaped = true, true
		case within != 0 && r == within:
			within = 0
		case within != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			inside, within = true, r
		case strings.ContainsRune(separators, r):
			if inside {
				words = append(words, word.String())
			}
			word.Reset()
			inside = false
		default:
			inside = true
			word.WriteRune(r)
		}
	}
	switch {
	case within != 0:
		return nil, usageError("a quote %c is not closed; close it", within)
	case escaped:
		return nil, usageError("nothing follows the last backslash; write two of them for one")
	case inside:
		words = append(words, word.String())
	}
	return words, nil
}

func textKey(to *string) func(string) error {
	return func(value string) error {
		if value == bareValue || value == "" {
			return usageError("the value is missing")
		}
		*to = value
		return nil
	}
}

func numberKey(to *int) func(string) error {
	return func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n <= 0 {
			return usageError("%s is no number above 0", quoteBare(value))
		}
		*to = n
		return nil
	}
}

func switchKey(to *bool) func(string) error {
	return func(value string) error {
		on, err := strconv.ParseBool(value)
		if err != nil && value != bareValue {
			return usageError("%s is neither true nor false", quote(value))
		}
		*to = on || value == bareValue
		return nil
	}
}

func durationKey(to *time.Duration) func(string) error {
	return func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d <= 0 {
			return usageError("%s is no time above 0s; write one such as 5s or 1m30s", quoteBare(value))
		}
		*to = d
		return nil
	}
}

// wordKey takes one of the words, in any case, with hyphens for underscores.
func wordKey[S ~string](to *S, words ...S) func(string) error {
	return func(value string) error {
		word, ok := oneWord(value, words)
		if !ok {
			return usageError("%s is none; use %s", quoteBare(value), listed(lowered(words), "or"))
		}
		*to = word
		return nil
	}
}

func oneWord[S ~string](value string, words []S) (S, bool) {
	at := slices.IndexFunc(words, func(w S) bool { return plainKey(string(w)) == plainKey(value) })
	if at < 0 {
		return "", false
	}
	return words[at], true
}

// lowered are the words of an enumeration as people write them.
func lowered[S ~string](words []S) []string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = strings.ToLower(strings.ReplaceAll(string(word), "_", "-"))
	}
	return out
}

func quoteBare(value string) string {
	if value == bareValue {
		return "nothing"
	}
	return quote(value)
}
