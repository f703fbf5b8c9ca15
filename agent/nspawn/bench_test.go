package nspawn_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// BenchmarkLaunch compares a launch, until it is RUNNING, with a bare systemd-nspawn start of the same root, until
// it says that it is ready, which is before its payload is executed. They alternate, so that both meet the same load; medians are reported.
//
//	go test -run '^$' -bench Launch -benchtime 20x ./agent/nspawn
func BenchmarkLaunch(b *testing.B) {
	h := newHost(b)
	d := h.open()
	var ours, bare []time.Duration
	for i := 0; b.Loop(); i++ {
		bare = append(bare, startBare(b, h, i))
		spec := h.spec(fmt.Sprintf("m%d", i), "sleep 60")
		begin := time.Now()
		run(b, d, spec)
		ours = append(ours, time.Since(begin))
		remove(b, d)
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(ours), "ms/launch")
	b.ReportMetric(median(bare), "ms/bare")
	b.ReportMetric(median(ours)/median(bare), "ratio")
	b.ReportMetric(0, "ns/op")
}

// startBare starts systemd-nspawn on the image's root, in a group of its own, and returns how long that took.
func startBare(b *testing.B, h *host, i int) time.Duration {
	b.Helper()
	socket := filepath.Join(h.state, fmt.Sprintf("n%d", i))
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	cmd := exec.Command("/bin/sh", "-c", "read go; exec systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe --as-pid2 "+
		"--machine="+fmt.Sprintf("%sbare%d", h.prefix, i)+" --directory="+filepath.Join(h.state, "images", image.Minimal)+" /bin/sleep 60")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	own, err := cgroup.Find("")
	if err != nil {
		b.Fatal(err)
	}
	bare := own.Group(h.prefix + "bare")
	if err := errors.Join(bare.Create(), bare.Join(cmd.Process.Pid)); err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	fmt.Fprintln(stdin)
	buf := make([]byte, 4096)
	for text := ""; !strings.Contains(text, "READY=1"); {
		n, err := conn.Read(buf)
		if err != nil {
			b.Fatal(err)
		}
		text = string(buf[:n])
	}
	took := time.Since(begin)
	if err := bare.Kill(); err != nil {
		b.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		b.Error("it ended by itself")
	}
	if err := bare.Remove(); err != nil {
		b.Error(err)
	}
	return took
}

// BenchmarkProcess measures how long a process takes until it runs, and a command until it has ended.
//
//	go test -run '^$' -bench Process -benchtime 20x ./agent/nspawn
func BenchmarkProcess(b *testing.B) {
	h := newHost(b)
	d := h.open()
	m := run(b, d, h.spec("a", "sleep 600")).Spec.Machine
	var starts, execs []time.Duration
	for b.Loop() {
		spec := processSpec(m, "sleep 600")
		begin := time.Now()
		if _, err := d.StartProcess(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		starts = append(starts, time.Since(begin))
		if err := d.RemoveProcess(b.Context(), spec.ProcessRef); err != nil {
			b.Fatal(err)
		}
		begin = time.Now()
		if _, err := d.Exec(b.Context(), shell(m, "true"), driver.Streams{}); err != nil {
			b.Fatal(err)
		}
		execs = append(execs, time.Since(begin))
	}
	remove(b, d)
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(starts), "ms/start")
	b.ReportMetric(median(execs), "ms/exec")
	b.ReportMetric(0, "ns/op")
}
