package testhost_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-cloud/muster/internal/testhost"
)

func TestBoot(t *testing.T) {
	h := testhost.Boot(t, testhost.Options{})
	if out := h.Run(t, "systemctl", "is-system-running", "--wait"); out != "running\n" {
		t.Errorf("it is %q: %s", out, h.Run(t, "systemctl", "--failed"))
	}
	if out := h.Run(t, "cat", "/proc/1/comm"); out != "systemd\n" {
		t.Errorf("process 1 is %q", out)
	}
	if _, err := h.Try(t.Context(), "false"); err == nil || !strings.HasPrefix(err.Error(), "false: ") {
		t.Errorf("a command that fails: %v", err)
	}
	h.Run(t, "sh", "-c", "echo words >/var/tmp/file")
	if text, err := os.ReadFile(filepath.Join(h.Dir, "var-tmp/file")); err != nil || string(text) != "words\n" {
		t.Errorf("a file of it: %q, %v", text, err)
	}
	boots := map[string]bool{h.Run(t, "cat", "/proc/sys/kernel/random/boot_id"): true}
	for _, graceful := range []bool{false, true} {
		h.Run(t, "touch", "/etc/a-file")
		h.Reboot(t, graceful)
		boots[h.Run(t, "cat", "/proc/sys/kernel/random/boot_id")] = true
		if out, err := h.Try(t.Context(), "sh", "-c", "cat /var/tmp/file && test ! -e /etc/a-file"); err != nil || out != "words\n" {
			t.Errorf("after a reboot its files are %q, %v", out, err)
		}
	}
	if len(boots) != 3 {
		t.Errorf("its boots are %v, want three", boots)
	}
}
