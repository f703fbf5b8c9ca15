package auth_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/muster-cloud/muster/registry/auth"
)

func TestThrottle_ByAddress(t *testing.T) {
	now := time.Unix(1000, 0)
	th := auth.NewThrottle(auth.ThrottleOptions{Burst: 3, Every: 10 * time.Second, Now: func() time.Time { return now }})
	guesser, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for i := range 3 {
		if wait := th.Fail(guesser); wait != 0 {
			t.Errorf("failure %d has to wait %s", i+1, wait)
		}
	}
	if wait := th.Fail(guesser); wait != 10*time.Second {
		t.Errorf("the fourth has to wait %s", wait)
	}
	if th.Wait(other) != 0 || th.Fail(other) != 0 {
		t.Error("another address has to wait")
	}
	now = now.Add(4 * time.Second)
	if wait := th.Wait(guesser); wait != 6*time.Second {
		t.Errorf("4 s later it has to wait %s", wait)
	}
	now = now.Add(6 * time.Second)
	if th.Wait(guesser) != 0 || th.Fail(guesser) != 0 || th.Fail(guesser) == 0 {
		t.Error("10 s later one more failure is allowed, not two")
	}
	now = now.Add(time.Hour)
	for range 3 {
		if th.Fail(guesser) != 0 {
			t.Error("an hour later it has to wait")
		}
	}
	if th.Fail(guesser) == 0 {
		t.Error("an hour allows more than the burst")
	}
	now = now.Add(-24 * time.Hour)
	if th.Wait(guesser) > 10*time.Second {
		t.Error("a clock that was set back locks out")
	}
}

func TestThrottle_CountsNetworksOfIPv6(t *testing.T) {
	th := auth.NewThrottle(auth.ThrottleOptions{Burst: 1})
	for name, c := range map[string]struct {
		first, second string
		same          bool
	}{
		"one /64":        {"2001:db8::1", "2001:db8::ffff:1", true},
		"two /64":        {"2001:db8:0:1::1", "2001:db8:0:2::1", false},
		"mapped":         {"::ffff:192.0.2.9", "192.0.2.9", true},
		"with a zone":    {"fe80::1%eth0", "fe80::2", true},
		"two of IPv4":    {"198.51.100.1", "198.51.100.2", false},
		"zero, and zero": {"", "", true},
	} {
		first, _ := netip.ParseAddr(c.first)
		second, _ := netip.ParseAddr(c.second)
		if th.Fail(first) != 0 {
			t.Errorf("%s: the first failure is not allowed", name)
		}
		if got := th.Fail(second) != 0; got != c.same {
			t.Errorf("%s: counted together: %v", name, got)
		}
	}
}

func TestThrottle_IsBounded(t *testing.T) {
	th := auth.NewThrottle(auth.ThrottleOptions{Burst: 1, Addresses: 3})
	address := func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i)) }
	for i := range 3 {
		th.Fail(address(i))
	}
	th.Fail(address(0)) // again: it is not the one that failed longest ago
	th.Fail(address(3))
	for i, want := range []bool{true, false, true, true} {
		if got := th.Wait(address(i)) > 0; got != want {
			t.Errorf("%s is remembered: %v", address(i), got)
		}
	}
}

func TestThrottle_ManyAtOnce(t *testing.T) {
	th := auth.NewThrottle(auth.ThrottleOptions{Burst: 50, Every: time.Hour})
	var mu sync.Mutex
	allowed := 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if th.Fail(netip.IPv6Loopback()) == 0 {
					mu.Lock()
					allowed++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if allowed != 50 {
		t.Errorf("%d failures were allowed, want 50", allowed)
	}
}
