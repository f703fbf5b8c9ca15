package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVolumes has real instances read what others have written.
func TestVolumes(t *testing.T) {
	t.Setenv("MUSTER_HEARTBEAT_INTERVAL", "1s") // a removal is told by a beat
	shared := t.TempDir()
	t.Setenv("MUSTER_ALLOW_HOST_PATH", shared)
	c := newCloud(t)
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			c.t = t
			test(t)
		})
		c.t = t
	}
	run("a volume outlives the instance that made it", c.volumeOutlives)
	run("host paths", func(t *testing.T) { c.hostPath(t, shared) })
	run("a volume is removed with its files", c.volumeRemoved)
	run("a disk is measured and limited", c.diskLimited)
}

// ends launches a shell script with volumes, waits for its end and returns it.
func (c *cloud) ends(script string, volumes ...string) (i shown) {
	c.t.Helper()
	args := []string{"--type", "NANO"}
	for _, v := range volumes {
		args = append(args, "--volume", v)
	}
	i = c.begun(append(args, "--", "/bin/sh", "-c", script)...)
	c.until(i.ID+" ends", func() bool {
		i = c.show(i.ID)
		return i.Status == "FAILED" || i.Status == "STOPPED"
	})
	return i
}

func (c *cloud) volumeOutlives(t *testing.T) {
	first := c.ends("echo words >/data/kept", "data:/data")
	if first.Status != "STOPPED" {
		t.Fatalf("the one that writes: %+v", first)
	}
	c.muster("instance", "terminate", first.ID, "--wait")
	if next := c.ends("cat /srv/kept; echo more >/srv/other", "data:/srv:ro"); next.Output[:6] != "words\n" || !strings.Contains(next.Output, "Read-only") || next.Status != "FAILED" {
		t.Errorf("the one that reads what is read-only: %+v", next)
	}
	again := c.ends("echo line >>/data/lines; wc -l </data/lines", "data:/data")
	c.muster("instance", "restart", again.ID)
	c.until("it has written a second line", func() bool { return strings.TrimSpace(c.show(again.ID).Output) == "2" })
}

func (c *cloud) hostPath(t *testing.T, shared string) {
	if err := os.Mkdir(filepath.Join(shared, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if i := c.ends("echo words >/host/kept", shared+"/in:/host"); i.Status != "STOPPED" {
		t.Fatalf("with a host path that is allowed: %+v", i)
	}
	if text, err := os.ReadFile(filepath.Join(shared, "in", "kept")); err != nil || string(text) != "words\n" {
		t.Errorf("on the host there is %q, %v", text, err)
	}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(shared, "out")); err != nil {
		t.Fatal(err)
	}
	i := c.ends("echo words >/host/kept", shared+"/out:/host")
	if i.Status != "FAILED" || !strings.Contains(i.StatusReason, shared+"/out leads to "+outside) {
		t.Errorf("with a link out of what is allowed: %+v", i)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("it wrote there: %v", left)
	}
	if out, err := c.try("instance", "launch", "--type", "NANO", "--volume", outside+":/host"); err == nil || !strings.Contains(err.Error(), "--allow-host-path "+outside) {
		t.Errorf("with a host path that is not allowed: %s, %v", out, err)
	}
}

func (c *cloud) diskLimited(t *testing.T) {
	i := c.begun("--type", "NANO", "--disk", "64", "--", "/bin/sh", "-c", "dd if=/dev/zero of=/big bs=1M count=20; dd if=/dev/zero of=/more bs=1M count=100; rm /more; sleep 600")
	c.until("its disk is measured, with what is still there", func() bool {
		var all []struct {
			ID          string
			DiskLimitMB int `json:"diskLimitMb"`
			Usage       *struct {
				DiskMB *int `json:"diskMb"`
			}
		}
		if err := json.Unmarshal([]byte(c.muster("instance", "top", "-o", "json")), &all); err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].ID == i.ID && all[0].DiskLimitMB == 64 && all[0].Usage != nil && all[0].Usage.DiskMB != nil && *all[0].Usage.DiskMB >= 20
	})
	if text := c.muster("logs", i.ID); !strings.Contains(text, "No space left on device") {
		t.Errorf("120 MiB went into 64:\n%s", text)
	}
	if text := c.muster("instance", "show", i.ID); !strings.Contains(text, "64 MiB\n") {
		t.Errorf("the limit is not shown:\n%s", text)
	}
}

func (c *cloud) volumeRemoved(t *testing.T) {
	i := c.ends("echo words >/data/kept", "doomed:/data")
	if _, err := c.try("volume", "remove", "doomed"); err == nil || !strings.Contains(err.Error(), i.ID) {
		t.Errorf("removed while it is used: %v", err)
	}
	c.muster("instance", "terminate", i.ID, "--wait")
	c.muster("volume", "remove", "doomed")
	c.until("it is gone", func() bool {
		var list []struct{ Name string }
		if err := json.Unmarshal([]byte(c.muster("volume", "list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		return len(list) == 1 && list[0].Name == "data"
	})
	left, err := os.ReadDir(filepath.Join(c.dir, "agent", "volumes"))
	if err != nil || len(left) != 1 {
		t.Errorf("on the node there are %v, %v, want the other volume only", left, err)
	}
}
