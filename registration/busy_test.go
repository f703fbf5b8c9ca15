package registration_test

import (
	"slices"
	"testing"

	"github.com/muster-cloud/muster/registration"
)

// Entries that are replaced while somebody reads are never missing, neither from what is
// looked up nor from what is followed.
func TestFeed_NothingIsMissedWhileItIsRefreshed(t *testing.T) {
	s, conn := stream(t, registration.StreamOptions{})
	js := conn.JetStream()
	pub := registration.NewJetStream(s, "uid-1")
	k := registration.NewKeeper(pub, registration.KeeperOptions{Origin: "uid-1", Logger: quiet()})
	running(t, k.Run)
	all := manyDesired(200)
	k.Replace(all)
	wait(t, k)
	r := newRecorder()
	running(t, registration.NewMirror(s, r, registration.MirrorOptions{Logger: quiet()}).Run)
	for round := range 20 {
		again := desired{} // a change of each, which replaces its message
		for subject, e := range all {
			c := *e
			c.Priority = 1 + round
			again[subject] = &c
		}
		k.Replace(again)
		if held, err := registration.Held(t.Context(), s); err != nil || len(held) != len(all) {
			t.Fatalf("round %d: %d of %d are held, %v", round, len(held), len(all), err)
		}
		r.until(t, "it follows again", inSync(round+1))
		for name := range mustStream(t, js).ConsumerNames(t.Context()).Name() {
			_ = mustStream(t, js).DeleteConsumer(t.Context(), name) // the mirror begins anew
		}
	}
	r.until(t, "it follows at the end", func(r *recorder) bool { return r.synced > 20 && len(r.there) == len(all) })
	if i := slices.IndexFunc(r.since(), func(s string) bool { return len(s) > 4 && s[:4] == "gone" }); i >= 0 {
		t.Error("something seemed gone")
	}
}
