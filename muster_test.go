package muster_test

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/muster-cloud/muster"
)

func TestCursor_RoundTrip(t *testing.T) {
	hex := rapid.StringMatching(`[0-9a-f]{16}`)
	rapid.Check(t, func(t *rapid.T) {
		c := muster.Cursor{Epoch: hex.Draw(t, "epoch"), Position: muster.Position{Revision: rapid.Int64Range(1, 1<<62).Draw(t, "revision"), Tag: hex.Draw(t, "tag")}}
		got, err := muster.ParseCursor(c.String())
		if err != nil || got != c {
			t.Fatalf("%+v came back as %+v, %v", c, got, err)
		}
	})
}

func TestParseCursor_RefusesWhatItDidNotWrite(t *testing.T) {
	good := muster.Cursor{Epoch: "0123456789abcdef", Position: muster.Position{Revision: 7, Tag: "fedcba9876543210"}}.String()
	for name, text := range map[string]string{
		"empty": "", "too short": good[:33], "too long": good + "A", "not base64": "!" + good[1:],
		"another version": "Ag" + good[2:], "bits that mean nothing": good[:33] + "_",
	} {
		if c, err := muster.ParseCursor(text); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%s: %q gave %+v, %v", name, text, c, err)
		}
	}
}

func TestInstanceID_Number(t *testing.T) {
	for id, want := range map[muster.InstanceID]int64{
		"i-1": 1, "i-9223372036854775807": 1<<63 - 1, "i-0": 0, "i-01": 0, "i-": 0, "i--1": 0, "i-+1": 0, "j-1": 0, "": 0, "i-1x": 0, "i-9223372036854775808": 0,
	} {
		n, ok := id.Number()
		if ok != (want != 0) || ok && n != want {
			t.Errorf("%q has the number %d, %t; want %d", id, n, ok, want)
		}
	}
}

func TestStatuses_EveryOneCanBeLeftAndReached(t *testing.T) {
	for _, s := range muster.InstanceStatuses() {
		reached := muster.InstanceStatus("").MayBecome(s)
		left := s == muster.Terminated // the end
		for _, other := range muster.InstanceStatuses() {
			reached = reached || other != s && other.MayBecome(s)
			left = left || other != s && s.MayBecome(other)
		}
		if !reached || !left {
			t.Errorf("%s: reached %t, left %t", s, reached, left)
		}
	}
	if muster.Terminated.MayBecome(muster.Running) || muster.InstanceStatus("").MayBecome("") || muster.Healthy.MayBecome(muster.Pruned) {
		t.Error("an illegal transition is allowed")
	}
}

func TestValidate_Launch(t *testing.T) {
	minute, negative := time.Minute, -time.Minute
	many := muster.Map{}
	for k := range muster.MaxMapEntries + 1 {
		many[strings.Repeat("k", k+1)] = ""
	}
	for field, change := range map[string]func(*muster.LaunchInstanceInput){
		"type":         func(in *muster.LaunchInstanceInput) { in.Type = "HUGE" },
		"name":         func(in *muster.LaunchInstanceInput) { in.Name = "-x" },
		"image":        func(in *muster.LaunchInstanceInput) { in.Image = "../etc" },
		"command":      func(in *muster.LaunchInstanceInput) { in.Command = []string{"a\x00"} },
		"env":          func(in *muster.LaunchInstanceInput) { in.Env = muster.Map{"A=B": ""} },
		"env.A":        func(in *muster.LaunchInstanceInput) { in.Env = muster.Map{"A": "\xff"} },
		"labels":       func(in *muster.LaunchInstanceInput) { in.Labels = many },
		"nodeSelector": func(in *muster.LaunchInstanceInput) { in.NodeSelector = muster.Map{"": "x"} },
		"requestId":    func(in *muster.LaunchInstanceInput) { in.RequestID = strings.Repeat("r", 129) },
		"queueTimeout": func(in *muster.LaunchInstanceInput) { in.QueueTimeout = &minute },
	} {
		in := muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal"}
		if err := in.Validate(); err != nil {
			t.Fatalf("the input before its change: %v", err)
		}
		change(&in)
		err, _ := in.Validate().(*muster.Error)
		if err == nil || err.Code != muster.Invalid || err.Field != field {
			t.Errorf("%s: %+v", field, err)
		}
	}
	in := muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal", Queue: true, QueueTimeout: &negative}
	if in.Validate() == nil {
		t.Error("a negative queueTimeout was accepted")
	}
}

func TestStorable_AlwaysIs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		for name, got := range map[string]string{"storable": muster.Storable(s, 40), "printable": muster.Printable(s, 40)} {
			if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > 40 {
				t.Fatalf("%s made %q of %q", name, got, s)
			}
		}
	})
}
