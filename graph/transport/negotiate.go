package transport

import (
	"mime"
	"strconv"
	"strings"
)

// The media types of answers. The older one is the default.
const (
	typeJSON     = "application/json"
	typeResponse = "application/graphql-response+json"
)

// negotiate picks the media type that the client likes best; at a tie the newer
// one, by a wildcard or without a header the older one. False: it takes neither.
func negotiate(accept []string) (mediaType string, ok bool) {
	header := strings.TrimSpace(strings.Join(accept, ","))
	if header == "" {
		return typeJSON, true
	}
	older, newer, wild := -1.0, -1.0, -1.0
	for part := range strings.SplitSeq(header, ",") {
		kind, parameters, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil {
			continue
		}
		q := quality(parameters["q"])
		switch kind {
		case typeJSON:
			older = max(older, q)
		case typeResponse:
			newer = max(newer, q)
		case "application/*", "*/*":
			wild = max(wild, q)
		}
	}
	if older < 0 {
		older = wild // what is named outweighs a wildcard
	}
	switch {
	case newer > 0 && newer >= older:
		return typeResponse, true
	case older > 0:
		return typeJSON, true
	}
	return "", false
}

func quality(text string) float64 {
	if text == "" {
		return 1
	}
	q, err := strconv.ParseFloat(text, 64)
	if err != nil || q < 0 || q > 1 {
		return 0
	}
	return q
}
