package registry

import "github.com/muster-cloud/muster"

// applyKey puts or drops an access key. Its changes carry no hash, and nobody who
// watches is given them.
func (b *batch) applyKey(actor muster.Actor, s step) {
	k := s.key
	c := b.change(actor, s, muster.KindKey, string(k.ID))
	if before := b.view.Key(k.ID); before != nil {
		c.PreviousRevision = before.Revision
	}
	k.Revision = c.Revision
	c.Key = k
	if s.deleted {
		b.delete(tableKey, k)
		b.keys.drop(k.ID)
		return
	}
	b.sequence(muster.KeySequence, sequenceNumber(string(k.ID)))
	b.insert(tableKey, k)
	b.keys.put(k.ID, k)
}

// applyToken is applyKey for join tokens.
func (b *batch) applyToken(actor muster.Actor, s step) {
	t := s.token
	c := b.change(actor, s, muster.KindToken, string(t.ID))
	if before := b.view.Token(t.ID); before != nil {
		c.PreviousRevision = before.Revision
	}
	t.Revision = c.Revision
	c.Token = t
	if s.deleted {
		b.delete(tableToken, t)
		b.tokens.drop(t.ID)
		return
	}
	b.sequence(muster.TokenSequence, sequenceNumber(string(t.ID)))
	b.insert(tableToken, t)
	b.tokens.put(t.ID, t)
}
