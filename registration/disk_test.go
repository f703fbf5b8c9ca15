package registration_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// limitFiles has every write fail that makes a file of this process larger than so many bytes, as a
// full disk does, until the returned function is called.
func limitFiles(t testing.TB, bytes uint64) (lift func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := syscall.Rlimit{Cur: bytes, Max: before.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
			t.Error(err)
		}
	}
}

// diskEnv says that a test is in a process of its own, whose files may be limited.
const diskEnv = "MUSTER_TEST_DISK"

// A store that could not write once refuses everything until it is opened again, and says nothing
// to those who publish.
func TestFeed_HealsAfterAFullDisk(t *testing.T) {
	if os.Getenv(diskEnv) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), diskEnv+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS: "+t.Name()) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	virtually(t, func(t *testing.T) {
		var states []registration.State
		f, _, _ := opened(t, registration.FeedOptions{OnState: func(s registration.State) { states = append(states, s) }})
		first := entry("first", "10.0.0.1", 80, time.Hour)
		f.Replace(wanted(first))
		wait(t, f.Keeper)
		lift := limitFiles(t, 64<<10)
		defer lift()
		all := wanted(first)
		for i := range 100 {
			e := entry(fmt.Sprintf("s%d", i), "10.0.0.1", 80, time.Hour)
			e.Annotations = muster.Map{"text": strings.Repeat("x", 2000)}
			all[registration.Subject(e)] = e
		}
		f.Replace(all)
		time.Sleep(5 * time.Minute)
		if s := f.State(); s.Up || !strings.Contains(s.Reason, "make room") {
			t.Errorf("the feed is %+v", s)
		}
		if c := f.Counts(); c.Pending == 0 {
			t.Fatalf("nothing failed: %+v", c)
		}
		lift()
		time.Sleep(time.Minute)
		wait(t, f.Keeper)
		if s := f.State(); !s.Up || len(states) > 6 {
			t.Errorf("the feed is %+v after %d changes: %+v", s, len(states), states)
		}
		if findings, err := f.Verify(t.Context(), false); err != nil || len(findings) != 0 {
			t.Errorf("got %v, %v", findings, err)
		}
	})
}
