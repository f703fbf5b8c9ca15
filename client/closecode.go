package client

import (
	"errors"
	"fmt"

	"github.com/gorilla/websocket"

	"github.com/muster-cloud/muster"
)

// closed is why a connection ended: a *lostError when another one may do better.
func (c *Client) closed(err error) error {
	if errors.Is(err, websocket.ErrReadLimit) {
		return &muster.Error{Code: muster.Limit, Err: err, Message: fmt.Sprintf("%s sent an event of more than %d bytes", c.endpoint, maxMessage)}
	}
	end, ok := errors.AsType[*websocket.CloseError](err)
	if !ok {
		return &lostError{c.unreachable(err)}
	}
	code, final := meaning(end.Code)
	reason := end.Text
	if reason == "" {
		reason = "no reason given"
	}
	closed := &muster.Error{Code: code, Err: err, Message: fmt.Sprintf("%s closed the watch with code %d: %s", c.endpoint, end.Code, reason)}
	if final {
		return closed
	}
	return &lostError{closed}
}

// meaning is the table of close codes: what a code says, and whether the same
// would happen on the next connection.
func meaning(code int) (_ muster.Code, final bool) {
	switch code {
	case websocket.CloseNormalClosure, websocket.CloseGoingAway, websocket.CloseNoStatusReceived,
		websocket.CloseAbnormalClosure, websocket.CloseServiceRestart, websocket.CloseTryAgainLater, 1014:
		return muster.Unavailable, false
	case 4401:
		return muster.Unauthenticated, true
	case 4403: // a key that was refused, revoked or has expired stays so
		return muster.Forbidden, true
	case 4400, 4406, 4409, 4429, 4500:
		return muster.Internal, true
	}
	if code < 3000 {
		return muster.Internal, true
	}
	return muster.Unavailable, false
}
