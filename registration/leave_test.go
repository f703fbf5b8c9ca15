package registration_test

import (
	"testing"
	"time"

	"github.com/muster-cloud/muster/registration"
)

// Programs that follow a stream and are killed, a hundred of them one after the other, leave nothing on its server
// for long.
func TestMirror_LeavesNoConsumers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		e := embedded(t, registration.EmbeddedOptions{})
		admin := connect(t, registration.ConnectOptions{Embedded: e})
		if _, err := registration.NewStream(admin, registration.StreamOptions{Logger: quiet()}).Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		consumers := func() int {
			t.Helper()
			found, err := admin.JetStream().Stream(t.Context(), registration.DefaultStream)
			if err != nil {
				t.Fatal(err)
			}
			return found.CachedInfo().State.Consumers
		}
		for range 100 {
			conn := connect(t, registration.ConnectOptions{Embedded: e})
			r := newRecorder()
			m := registration.NewMirror(registration.NewStream(conn, registration.StreamOptions{Logger: quiet()}), r, registration.MirrorOptions{Logger: quiet()})
			stop := running(t, m.Run)
			r.until(t, "synced", inSync(1))
			conn.Close() // it can say goodbye to nobody
			stop()
			time.Sleep(time.Second)
		}
		if n := consumers(); n < 2 {
			t.Errorf("%d consumers at once: none was left behind", n)
		}
		conn := connect(t, registration.ConnectOptions{Embedded: e})
		last := newRecorder()
		running(t, registration.NewMirror(registration.NewStream(conn, registration.StreamOptions{Logger: quiet()}), last, registration.MirrorOptions{Logger: quiet()}).Run)
		last.until(t, "synced", inSync(1))
		time.Sleep(time.Minute)
		if n := consumers(); n != 1 {
			t.Errorf("%d consumers, and one follows", n)
		}
	})
}
