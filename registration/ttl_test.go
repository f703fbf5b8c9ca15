package registration_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

func TestParseTTL(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"never": muster.RegistrationTTLForever,
		"1s":    time.Second, "90s": 90 * time.Second, "5m": 5 * time.Minute, "1h30m": 90 * time.Minute, "1.5m": 90 * time.Second, "1000ms": time.Second,
		"1d": day, "1d12h": 36 * time.Hour, "2w": 14 * day, "1M": 30 * day, "1M1m": 30*day + time.Minute, "1y": 365 * day, "1.5d": 36 * time.Hour,
		"1y1M1w1d1h1m1s": (365+30+7+1)*day + time.Hour + time.Minute + time.Second,
		"0.5s0.5s":       time.Second,
	} {
		if got, err := muster.ParseRegistrationTTL("ttl", text); err != nil || got != want {
			t.Errorf("%q: got %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestParseTTL_Refuses(t *testing.T) {
	for _, text := range []string{
		"", " ", "5s garbage", "5s ", " 5s", "5", "s", "d", "-5s", "+5s", "-1d", "0", "0s", "0d", "500ms", "1.5s", "1ns", "Never", "never ", "forever",
		"5S", "1D", "1W", "1Y", "5sec", "1d-12h", "1..5h", ".h", "1e3s", "1_000s", "300y", "200y200y", "9999999999999999999d", "9223372036854775807h", "١s", "1d\x00", "1dd",
	} {
		got, err := muster.ParseRegistrationTTL("entry.ttl", text)
		if err == nil || !strings.HasPrefix(err.Error(), "entry.ttl: ") || muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
}

func TestCheckTTL_NamesWhatTheFeedCannotKeep(t *testing.T) {
	for _, ttl := range []*time.Duration{nil, ptr(muster.RegistrationTTLForever), ptr(24 * time.Hour)} {
		if err := registration.CheckTTL("ttl", ttl, 24*time.Hour); err != nil {
			t.Error(err)
		}
	}
	if err := registration.CheckTTL("ttl", ptr(24*time.Hour+time.Second), 24*time.Hour); muster.CodeOf(err) != muster.Invalid {
		t.Errorf("got %v", err)
	}
}

func TestRefresh(t *testing.T) {
	for _, c := range []struct {
		ttl  *time.Duration
		want time.Duration
	}{
		{nil, 8 * time.Hour},
		{ptr(muster.RegistrationTTLForever), 0},
		{ptr(30 * time.Second), 10 * time.Second},
		{ptr(300 * 24 * time.Hour), 8 * time.Hour}, // the server shortens it
	} {
		if got := registration.Refresh(c.ttl, 24*time.Hour); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

func FuzzTTL(f *testing.F) {
	for _, s := range []string{"never", "1d12h", "5m0s", "1.5d", "5s garbage", "-1s", "300y", "1M1m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ttl, err := muster.ParseRegistrationTTL("ttl", text)
		if err != nil {
			return
		}
		if ttl != muster.RegistrationTTLForever && (ttl < time.Second || ttl%time.Second != 0) {
			t.Fatalf("%q gave %s", text, ttl)
		}
		if back, err := muster.ParseRegistrationTTL("ttl", muster.FormatRegistrationTTL(ttl)); err != nil || back != ttl {
			t.Errorf("%q: %s is read as %s, %v", text, ttl, back, err)
		}
	})
}
