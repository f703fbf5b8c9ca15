package registration

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/muster-cloud/muster"
)

// Damage is a difference between what a Keeper should have in the feed and what is there.
type Damage string

// The kinds of damage.
const (
	Missing   Damage = "missing"       // it is desired, and not there
	Different Damage = "different"     // what is there says something else
	WrongTTL  Damage = "wrong ttl"     // it expires at another time
	Foreign   Damage = "not ours"      // somebody else has written over it
	Stray     Damage = "not desired"   // it carries our origin, and nobody desires it
	Malformed Damage = "not decodable" // it carries our origin, and is no entry
)

// Finding is one damaged subject.
type Finding struct {
	Subject string
	Damage  Damage
}

// Verify compares what is desired with what the stream holds of ours, by subject, bytes, time to
// live and origin, and returns what differs, by subject. Subjects about which something is under way
// are left out. With repair each is put right, soon after: Wait tells when.
//
// There are no strays before Replace has said what is desired in all.
func (k *Keeper) Verify(ctx context.Context, s *Stream, repair bool) ([]Finding, error) {
	start := time.Now()
	held, err := Held(ctx, s)
	if err != nil {
		return nil, err
	}
	there := make(map[string]*Message, len(held))
	for i := range held {
		if held[i].Gone == "" {
			there[held[i].Subject] = &held[i]
		}
	}
	findings, err := k.strays(ctx, there)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for subject, s := range k.slots {
		if s.want == nil || s.busy || s.wrote.After(start) || !s.there && s.due.Before(start.Add(disputePause/10)) {
			continue
		}
		if d := k.damage(s, there[subject]); d != "" {
			findings = append(findings, Finding{subject, d})
		}
	}
	slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Subject, b.Subject) })
	if repair {
		k.repairLocked(findings, there)
	}
	return findings, nil
}

// strays finds what carries our origin and nobody desires. Each is looked at again: it may
// have been removed since it was read.
func (k *Keeper) strays(ctx context.Context, there map[string]*Message) ([]Finding, error) {
	var findings []Finding
	for subject, m := range there {
		if m.Origin != k.opts.Origin || !k.isStray(subject) {
			continue
		}
		last, err := k.pub.Last(ctx, subject)
		if err != nil {
			return nil, err
		}
		if last != nil && last.Gone == "" && last.Origin == k.opts.Origin && k.isStray(subject) {
			findings = append(findings, Finding{subject, strayOf(m)})
		}
	}
	return findings, nil
}

func (k *Keeper) isStray(subject string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.isStrayLocked(subject)
}

func strayOf(m *Message) Damage {
	if m.Err != nil {
		return Malformed
	}
	return Stray
}

// damage judges what is there in the place of a desired entry.
func (k *Keeper) damage(s *slot, m *Message) Damage {
	if m == nil {
		return Missing
	}
	data, err := Encode(s.want)
	ttl := ""
	if s.want.TTL != nil {
		ttl = muster.FormatRegistrationTTL(*s.want.TTL)
	}
	switch {
	case m.Origin != k.opts.Origin:
		return Foreign
	case err != nil || !bytes.Equal(data, m.Data):
		return Different
	case ttl != m.TTL:
		return WrongTTL
	}
	return ""
}

func (k *Keeper) repairLocked(findings []Finding, there map[string]*Message) {
	for _, f := range findings {
		s := k.slots[f.Subject]
		if s == nil {
			s = &slot{subject: f.Subject, index: -1}
			k.slots[f.Subject] = s
		}
		s.there = false
		if m := there[f.Subject]; m != nil {
			s.saw(m.Sequence, m.Origin == k.opts.Origin)
		} else {
			s.saw(0, false)
		}
		s.version++
		k.scheduleLocked(s, time.Now())
	}
	k.poke()
}
