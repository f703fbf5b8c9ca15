package network_test

import (
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

// within runs fn in a machine's namespace; the empty name is the node's.
func within(t *testing.T, machine string, fn func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		if machine != "" {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if err := enter(machine); err != nil {
				done <- err
				return
			}
		}
		done <- fn()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// enter moves the calling thread into a machine's namespace.
func enter(machine string) error {
	ns, err := netns.GetFromName(machine)
	if err != nil {
		return err
	}
	defer ns.Close()
	return netns.Set(ns)
}
