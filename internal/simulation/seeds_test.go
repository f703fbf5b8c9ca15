package simulation_test

import (
	"fmt"
	"testing"
)

// TestSimulation_SeedsThatOnceFailed plays again what brought a defect to light.
// The defects have tests of their own beside the code; these keep the weather.
func TestSimulation_SeedsThatOnceFailed(t *testing.T) {
	for _, c := range []struct {
		seed  uint64
		found string
	}{
		{123, "an agent that was cut off while its node was removed launched again what it had just been told to remove"},
		{3, "a registration that came late undid a newer report, and a PID stayed wrong"},
		{170, "a sweep found a node that had just registered before its sign of life, and called it UNHEALTHY"},
	} {
		t.Run(fmt.Sprint("seed ", c.seed, ": ", c.found), func(t *testing.T) {
			t.Parallel()
			simulate(t, c.seed)
		})
	}
}
