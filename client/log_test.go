package client_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (p *peer) piece(text, place string) {
	p.say(`{"id":"1","type":"next","payload":{"data":{"instanceLogs":{"text":%q,"place":%q,"generation":1,"offset":0,"skipped":0,"end":false}}}}`, text, place)
}

func TestInstanceLogs_ResumesAfterTheLastPiece(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		act := func(play func(*peer)) func(*peer) {
			return opened(func(p *peer) {
				asked = append(asked, jsonOf(p.asks))
				play(p)
				p.drain()
			})
		}
		_, c := newStage(
			t,
			act(func(p *peer) { p.fail("UNAVAILABLE") }),
			act(func(p *peer) { p.piece("a", "1-1"); p.piece("b", "1-2"); _ = p.conn.UnderlyingConn().Close() }),
			status(503),
			act(func(p *peer) { p.piece("c", "1-3"); p.fail("UNAVAILABLE") }),
			act(func(p *peer) { p.say(`{"id":"1","type":"complete"}`) }),
		)
		text, losses, tail := "", 0, 5
		o := client.LogOptions{Follow: true, Tail: &tail, OnDisconnect: func(error, time.Duration) { losses++ }}
		err := c.InstanceLogs(t.Context(), "i-7", o, func(p muster.LogPiece) error { text += p.Text; return nil })
		if err != nil || text != "abc" || losses != 4 {
			t.Errorf("read %q with %d losses, %v", text, losses, err)
		}
		want := []string{
			`{"follow":true,"id":"i-7","tail":5}`, `{"follow":true,"id":"i-7","tail":5}`,
			`{"after":"1-2","follow":true,"id":"i-7"}`, `{"after":"1-3","follow":true,"id":"i-7"}`,
		}
		if diff := cmp.Diff(want, asked); diff != "" {
			t.Error(diff)
		}
	})
}

func TestInstanceLogs_Ends(t *testing.T) {
	mine := errors.New("mine")
	for name, c := range map[string]struct {
		act   func(*peer)
		each  error
		want  error
		code  muster.Code
		dials int
	}{
		"a node that stays away":   {func(p *peer) { p.fail("UNAVAILABLE") }, nil, nil, muster.Unavailable, 4},
		"an instance that is not":  {func(p *peer) { p.fail("NOT_FOUND") }, nil, nil, muster.NotFound, 1},
		"a reader that has enough": {func(p *peer) { p.piece("a", "1-1") }, mine, mine, "", 1},
		"what is no piece":         {func(p *peer) { p.say(`{"id":"1","type":"next","payload":{"data":null}}`) }, nil, nil, muster.Internal, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, api := newStage(t, opened(func(p *peer) { c.act(p); p.drain() }))
				err := api.InstanceLogs(t.Context(), "i-7", client.LogOptions{}, func(muster.LogPiece) error { return c.each })
				if c.want != nil && err != c.want || c.code != "" && muster.CodeOf(err) != c.code {
					t.Errorf("it ended with %v", err)
				}
				if n := len(s.dialled()); n != c.dials {
					t.Errorf("it connected %d times, want %d", n, c.dials)
				}
			})
		})
	}
}
