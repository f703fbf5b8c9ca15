package nspawn_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// TestNetwork_InstancesReachEachOtherAndTheNode has two machines that serve their name, asked by the
// node and by the other one.
func TestNetwork_InstancesReachEachOtherAndTheNode(t *testing.T) {
	h := newHost(t)
	d := h.open()
	node, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	_, port, _ := net.SplitHostPort(node.Addr().String())
	a, b := h.spec("a", "hostname >/index.html; exec httpd -f -p 80 -h /"), h.spec("b", "")
	server := strings.TrimSuffix(a.Addr, "/24")
	b.Command[2] = fmt.Sprintf(`ping -c 1 -w 5 %[1]s >/dev/null && echo pinged
printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 5 %[1]s 80 | tail -n 1
echo from b | nc -w 5 %[2]s %[3]s
ip link set eth0 down || echo network is fixed`, server, b.Gateway, port)
	run(t, d, a)
	if answer := fetch(t, "http://"+server+"/index.html"); answer != "a\n" {
		t.Errorf("the node was answered %q by a, want its name", answer)
	}
	if _, err := d.Launch(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	conn, err := node.Accept()
	if err != nil {
		t.Fatal(err)
	}
	said, _ := bufio.NewReader(conn).ReadString('\n')
	conn.Close()
	if said != "from b\n" {
		t.Errorf("b said %q to the node", said)
	}
	m := await(t, d, b.Machine, exited)
	for _, want := range []string{"pinged\n", "a\n", "network is fixed\n"} {
		if !strings.Contains(m.Output, want) {
			t.Errorf("b printed %q, want %q in it", m.Output, want)
		}
	}
	remove(t, d)
}

// fetch asks until there is an answer: a payload that runs may not listen yet.
func fetch(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var last error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		response, err := client.Get(url)
		if err != nil {
			last = err
			continue
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	t.Fatal(last)
	return ""
}

func TestNetwork_RefusedSubnetLeavesNothing(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "sleep 60")
	spec.Addr, spec.Gateway = "127.0.0.2/24", "127.0.0.1"
	if _, err := d.Launch(t.Context(), spec); muster.CodeOf(err) != muster.Conflict {
		t.Errorf("launch: %v, want CONFLICT", err)
	}
	if all, err := d.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("listed %+v, %v, want nothing", all, err)
	}
}

func TestNetwork_None(t *testing.T) {
	h := newHost(t)
	d := h.open()
	spec := h.spec("a", "ls /sys/class/net")
	spec.Addr, spec.Gateway = "", ""
	if _, err := d.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if m := await(t, d, spec.Machine, func(m driver.Status) bool { return m.State == driver.Exited }); m.Output != "lo\n" {
		t.Errorf("its interfaces are %q, want lo only", m.Output)
	}
	remove(t, d)
}
