package operations

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
)

// MarshalDuration writes Go's text, such as "10s".
func MarshalDuration(d *time.Duration) ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalDuration reads Go's text.
func UnmarshalDuration(b []byte, d *time.Duration) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return fmt.Errorf("a duration: %w", err)
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("a duration: %w", err)
	}
	*d = parsed
	return nil
}

// MarshalLaunchInstanceInput leaves out what is empty, so that the schema's
// defaults hold, and writes the timeout as text.
func MarshalLaunchInstanceInput(in *muster.LaunchInstanceInput) ([]byte, error) {
	type plain muster.LaunchInstanceInput
	out := struct {
		*plain
		Image        string `json:"image,omitempty"`
		QueueTimeout string `json:"queueTimeout,omitempty"`
	}{plain: (*plain)(in), Image: in.Image}
	if in.QueueTimeout != nil {
		out.QueueTimeout = in.QueueTimeout.String()
	}
	return json.Marshal(out)
}

// MarshalDrainNodeInput writes the deadline as text.
func MarshalDrainNodeInput(in *muster.DrainNodeInput) ([]byte, error) {
	type plain muster.DrainNodeInput
	out := struct {
		*plain
		Deadline *string `json:"deadline,omitempty"`
	}{plain: (*plain)(in)}
	if in.Deadline != nil {
		text := in.Deadline.String()
		out.Deadline = &text
	}
	return json.Marshal(out)
}

// MarshalCreateJoinTokenInput leaves out what is empty and writes the time to live as text.
func MarshalCreateJoinTokenInput(in *muster.CreateJoinTokenInput) ([]byte, error) {
	type plain muster.CreateJoinTokenInput
	out := struct {
		*plain
		TTL *string `json:"ttl,omitempty"`
	}{plain: (*plain)(in)}
	if in.TTL != nil {
		text := in.TTL.String()
		out.TTL = &text
	}
	return json.Marshal(out)
}

// UnmarshalBeat reads the answer to a heartbeat.
func UnmarshalBeat(b []byte, beat *muster.Beat) error {
	var in struct {
		NextBeatIn      json.RawMessage `json:"nextBeatIn"`
		Epoch           string          `json:"epoch"`
		DesiredRevision int64           `json:"desiredRevision"`
		ReportSequence  int64           `json:"reportSequence"`
		Peers           string          `json:"peers"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return fmt.Errorf("the answer to a heartbeat: %w", err)
	}
	beat.Epoch, beat.DesiredRevision, beat.ReportSequence, beat.Peers = in.Epoch, in.DesiredRevision, in.ReportSequence, in.Peers
	return UnmarshalDuration(in.NextBeatIn, &beat.NextBeatIn)
}
