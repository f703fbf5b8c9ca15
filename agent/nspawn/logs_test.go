package nspawn_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// floodLines is 64 MB of lines such as 0000001, eight bytes each: what is at a place is known.
const floodLines = 8_000_000

// TestLogs_FloodFillsNothing has a payload write much more than is kept, and reads along.
func TestLogs_FloodFillsNothing(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", fmt.Sprintf("seq -w 1 %d; printf 'the \\377 end\\n'", floodLines))
	spec.CPUPercent = 200
	if _, err := d.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	var place, skipped, parts int64
	for {
		part := readLog(t, d, spec.Machine, driver.LogRead{Offset: place, Limit: 64 << 10})
		if part.Offset < place {
			t.Fatalf("asked for %d and got %d", place, part.Offset)
		}
		skipped += part.Offset - place
		if at, ok := differs(part); !ok {
			t.Fatalf("at %d is not what was written there", at)
		}
		if place = part.Next(); part.Ended {
			break
		}
		parts++
	}
	t.Logf("%d parts, %d bytes were dropped before they were read", parts, skipped)
	if want := int64(8*floodLines + len("the ? end\n")); place != want {
		t.Errorf("it ends at %d, want %d", place, want)
	}
	m := await(t, d, spec.Machine, exited)
	if len(m.Output) > driver.OutputLimit || !utf8.ValidString(m.Output) || !strings.HasSuffix(m.Output, "8000000\nthe \uFFFD end\n") {
		t.Errorf("the output has %d bytes and ends with %q", len(m.Output), m.Output[max(0, len(m.Output)-40):])
	}
	kept := readLog(t, d, spec.Machine, driver.LogRead{Offset: -1, Tail: -1, Limit: 8 << 20})
	if at, ok := differs(kept); !ok || len(kept.Data) < driver.LogKept || kept.Next() != place || kept.Data[7] != '\n' {
		t.Errorf("%d bytes are kept up to %d, wrong at %d: %q…", len(kept.Data), kept.Next(), at, kept.Data[:min(40, len(kept.Data))])
	}
	if used := diskUse(t, h, spec.Machine); used > 2<<20 {
		t.Errorf("the machine's files use %d bytes of the disk after 64 MB were written", used)
	}
	remove(t, d)
}

// differs returns where a part of the flood is not what was written there.
func differs(part driver.LogPart) (int64, bool) {
	for i, b := range part.Data {
		at := part.Offset + int64(i)
		if at >= 8*floodLines {
			break
		}
		if line := fmt.Sprintf("%07d\n", at/8+1); line[at%8] != b {
			return at, false
		}
	}
	return 0, true
}

func readLog(t *testing.T, d *nspawn.Driver, machine string, r driver.LogRead) driver.LogPart {
	t.Helper()
	part, err := d.ReadLog(t.Context(), machine, r)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

// diskUse is how much the files beside a machine take up.
func diskUse(t *testing.T, h *host, machine string) (bytes int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.state, "machines", machine, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of %s: %v", machine, err)
	}
	for _, file := range files {
		var info syscall.Stat_t
		if err := syscall.Lstat(file, &info); err != nil {
			t.Fatal(err)
		}
		bytes += info.Blocks * 512
	}
	return bytes
}

// TestLogs_AFileThatIsTooLongIsBegunAnew makes a log as long as one becomes after days of flooding.
func TestLogs_AFileThatIsTooLongIsBegunAnew(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "trap 'echo second; exit 0' TERM; echo first; while :; do sleep 60 & wait $!; done")
	run(t, d, spec)
	await(t, d, spec.Machine, func(driver.Status) bool { return strings.Contains(h.console(spec.Machine), "first") })
	log := filepath.Join(h.state, "machines", spec.Machine, "console.log")
	const long = 1<<40 + 4096
	if err := os.Truncate(log, long); err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(grace)
	for info, err := os.Stat(log); err != nil || info.Size() > driver.LogKept; info, err = os.Stat(log) {
		if time.Now().After(until) {
			t.Fatalf("the log was not begun anew: %v, %v", info, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := d.Stop(t.Context(), spec.Machine, grace); err != nil {
		t.Fatal(err)
	}
	if part := readLog(t, d, spec.Machine, driver.LogRead{Offset: long, Limit: 4096}); part.Offset != long || string(part.Data) != "second\n" {
		t.Errorf("after it was begun anew %q is at %d, want the second line at %d", part.Data, part.Offset, int64(long))
	}
	remove(t, d)
}
