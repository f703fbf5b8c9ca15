package store_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/muster-cloud/muster/registry/store"
)

// The environment that makes the test binary a victim.
const (
	victimDir   = "MUSTER_TEST_VICTIM_DIR"
	victimPoint = "MUSTER_TEST_VICTIM_POINT"
)

// killedAt is the commit in which a victim with a point kills itself.
const killedAt = 5

// victim commits and says so on standard output, until it is killed: by itself at
// a point of a commit, or by the test.
func victim(dir, point string) {
	commits := 0
	s, err := store.Open(context.Background(), store.Options{Dir: dir, Fault: func(p store.Point) error {
		if string(p) == point && commits == killedAt {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return nil
	}})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	state, err := s.Load(context.Background())
	if err != nil {
		fmt.Println("error", err)
		return
	}
	j := newJournal(state)
	node := aNode(1)
	for {
		commits++
		b := j.batch(node, anInstance(commits, node))
		if err := s.Commit(context.Background(), b); err != nil {
			fmt.Println("error", err)
			return
		}
		fmt.Println(b.To)
	}
}

// kill runs a victim until it has acknowledged so many commits or has killed
// itself, and returns the last revision that it acknowledged.
func kill(t *testing.T, dir, point string, after int) int64 {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), victimDir+"="+dir, victimPoint+"="+point)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	var acked int64
	for n := 0; ; n++ {
		if n == after {
			_ = cmd.Process.Kill()
		}
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		if acked, err = strconv.ParseInt(strings.TrimSpace(line), 10, 64); err != nil {
			t.Fatalf("the victim says %q", line)
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the victim was not killed: %v", err)
	}
	return acked
}

func TestStore_OpensAfterKill(t *testing.T) {
	const each = 2 // revisions of a commit
	cases := []struct {
		name      string
		point     store.Point
		after     int   // acknowledged commits after which the test kills
		committed int64 // revisions that are there without having been acknowledged
	}{
		{name: "when all is written", point: store.BeforeCommit, after: -1},
		{name: "between COMMIT and its answer", point: store.AfterCommit, after: -1, committed: each},
		{name: "somewhere, early", after: 3, committed: -1},
		{name: "somewhere, late", after: 200, committed: -1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			acked := kill(t, dir, string(c.point), c.after)
			s := open(t, store.Options{Dir: dir})
			state := load(t, s)
			head := state.Head.Revision
			if c.committed >= 0 && head != acked+c.committed {
				t.Errorf("the head is %d; %d was acknowledged, so it should be %d", head, acked, acked+c.committed)
			}
			if head < acked || head%each != 0 {
				t.Errorf("the head is %d, in the middle of a commit or before %d, which was acknowledged", head, acked)
			}
			if int64(len(state.Instances)) != head/each {
				t.Errorf("%d instances at revision %d", len(state.Instances), head)
			}
			changes, err := s.ChangesAfter(t.Context(), 0, int(head)+1)
			if err != nil || int64(len(changes)) != head {
				t.Errorf("%d changes at revision %d: %v", len(changes), head, err)
			}
			j := newJournal(state)
			commit(t, s, j.batch(aNode(2)))
		})
	}
}
