package cli_test

import (
	"strings"
	"testing"
)

func TestRegistrationQuery_SaysThatItIsNotComplete(t *testing.T) {
	entry := map[string]any{
		"key": "k", "cluster": "prod", "protocol": "http", "service": "web", "address": "10.0.0.1", "port": 80, "priority": 10,
		"status": "STALE", "origin": "u-2", "owners": []string{}, "registeredAt": "2026-11-30T01:00:00Z",
	}
	found := map[string]any{"entries": []any{entry}, "complete": false, "asOf": "2026-11-30T01:02:03Z", "revision": 7}
	answer := map[string]any{"data": map[string]any{"registrations": found}}
	code, out, said := against(t, answer, "registration", "query")
	if code != 0 || !strings.Contains(out, "10.0.0.1:80") || !strings.Contains(out, "cluster u-2") {
		t.Errorf("it ended with %d and printed %q", code, out)
	}
	if !strings.HasPrefix(said, "muster: not complete: the feed cannot be reached, and what others registered is as of 2026-11-30T01:02:03Z, ") {
		t.Errorf("it said %q", said)
	}
	if _, out, said = against(t, answer, "registration", "query", "-o", "json"); !strings.Contains(out, `"complete": false`) || !strings.Contains(said, "not complete") {
		t.Errorf("as json it printed %q and said %q", out, said)
	}
}

func TestDoctor_SaysWhatDiffersInTheFeed(t *testing.T) {
	answer := map[string]any{"data": map[string]any{"verifyFeed": map[string]any{
		"findings": []any{map[string]any{"subject": "choria.ccm.x", "damage": "missing"}},
	}}}
	for _, test := range []struct {
		args []string
		code int
		said string
	}{
		{nil, 8, "muster: 1 subject not as it should be; put right what differs with --repair\n"},
		{[]string{"--repair"}, 0, "muster: 1 subject put right\n"},
	} {
		code, out, said := against(t, answer, append([]string{"doctor", "--verify-feed"}, test.args...)...)
		if code != test.code || said != test.said || !strings.Contains(out, "choria.ccm.x   missing") {
			t.Errorf("%v: it ended with %d, printed %q and said %q", test.args, code, out, said)
		}
	}
}
