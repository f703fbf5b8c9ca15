package browsertest_test

import (
	"log/slog"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
	"github.com/muster-cloud/muster/server"
)

// serve runs a real server until the test ends and returns its address.
func serve(t *testing.T) string {
	t.Helper()
	s, err := server.Open(t.Context(), server.Options{
		Keyless: true,
		DataDir: t.TempDir(), Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.Addr().String()
}

// register announces a node, as its agent would.
func register(t *testing.T, addr string, id muster.NodeID) {
	t.Helper()
	api, err := client.New(client.Options{URL: "http://" + addr})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.RegisterNode(t.Context(), muster.RegisterNodeInput{
		ID: id, Hostname: string(id), Addr: "127.0.0.1", Port: 8080, Role: muster.Compute,
		CPUCount: 4, MemoryMB: 4096, Incarnation: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Close(); err != nil {
		t.Error(err)
	}
}
