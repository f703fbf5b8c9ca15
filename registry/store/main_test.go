package store_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be the process that a test kills.
func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		victim(dir, os.Getenv(victimPoint))
		return
	}
	goleak.VerifyTestMain(m)
}
