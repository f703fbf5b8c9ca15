package muster

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxLogData bounds what an agent answers to one request, in bytes as they were
// written: in base64 it fits into a request.
const MaxLogData = 32 << 10

// LogPlace is a place in what an instance writes to its console: a generation,
// and how many bytes that had written before.
type LogPlace struct{ Generation, Offset int64 }

// String writes the place as clients hand it back.
func (p LogPlace) String() string { return fmt.Sprintf("%d-%d", p.Generation, p.Offset) }

// ParseLogPlace reads what String wrote; anything else is INVALID.
func ParseLogPlace(s string) (LogPlace, error) {
	generation, offset, ok := strings.Cut(s, "-")
	var p LogPlace
	var err, err2 error
	p.Generation, err = strconv.ParseInt(generation, 10, 64)
	p.Offset, err2 = strconv.ParseInt(offset, 10, 64)
	if !ok || err != nil || err2 != nil || p.Generation < 0 || p.Offset < 0 || p.String() != s {
		return LogPlace{}, InvalidField("after", "%.80q is no place in a log: give the `place` of an earlier piece as it came, or nothing", s)
	}
	return p, nil
}

// InstanceLogsInput says what to read of an instance's log.
type InstanceLogsInput struct {
	ID     InstanceID `json:"id"`
	After  *string    `json:"after,omitempty"` // a LogPlace
	Tail   *int       `json:"tail,omitempty"`  // lines; nil: all that is kept
	Follow bool       `json:"follow"`
}

// Validate refuses what cannot be read, and returns the place to go on after; nil when
// none was given.
func (in *InstanceLogsInput) Validate() (*LogPlace, error) {
	if err := CheckID("id", string(in.ID)); err != nil {
		return nil, err
	}
	if in.Tail != nil && *in.Tail < 0 {
		return nil, InvalidField("tail", "%d is no number of lines; leave it out for all that is kept", *in.Tail)
	}
	if in.After == nil {
		return nil, nil
	}
	place, err := ParseLogPlace(*in.After)
	return &place, err
}

// LogPiece is a piece of what an instance wrote to its console.
type LogPiece struct {
	Text       string `json:"text"`
	Place      string `json:"place"` // after it; a LogPlace
	Generation int64  `json:"generation"`
	Offset     int64  `json:"offset"`
	Skipped    int64  `json:"skipped"`
	End        bool   `json:"end"`
}

// AgentRequest is something that the server asks an agent for.
type AgentRequest struct {
	ID    int64         `json:"id"`
	Log   *LogRequest   `json:"log"`
	Check *CheckRequest `json:"check"`
	Exec  *ExecRequest  `json:"exec"`
}

// CheckRequest tells an agent what a service said of its own TTL check.
type CheckRequest struct {
	Service ServiceID   `json:"service"`
	Check   string      `json:"check"`
	Status  CheckStatus `json:"status"`
	Output  string      `json:"output"`
}

// LogRequest asks for a part of a machine's log, or of that of a process in it.
type LogRequest struct {
	Machine string `json:"machine"`
	Process string `json:"process"` // empty: the machine's console
	Offset  int64  `json:"offset"`  // below 0: begin with the last Tail lines
	Tail    int    `json:"tail"`    // below 0: all that is kept
	Limit   int    `json:"limit"`   // bytes
	Wait    bool   `json:"wait"`    // for something to be written, for some seconds
}

// AgentAnswerInput answers an AgentRequest.
type AgentAnswerInput struct {
	UID         NodeUID `json:"uid"`
	Incarnation int64   `json:"incarnation"`
	ID          int64   `json:"id"`
	Offset      int64   `json:"offset"`
	Data        []byte  `json:"data"`
	End         int64   `json:"end"` // the place after the newest byte that there is
	Ended       bool    `json:"ended"`
	Code        *Code   `json:"code,omitempty"` // why not, instead
	Message     string  `json:"message"`
}

// Validate refuses an answer that cannot be one.
func (in *AgentAnswerInput) Validate() error {
	switch {
	case len(in.Data) > MaxLogData:
		return InvalidField("data", "it has %d bytes, at most %d are taken", len(in.Data), MaxLogData)
	case in.Offset < 0 || in.End < in.Offset+int64(len(in.Data)):
		return InvalidField("offset", "%d with %d bytes of data is not before the end, %d", in.Offset, len(in.Data), in.End)
	}
	return CheckText("message", in.Message, 1024)
}
