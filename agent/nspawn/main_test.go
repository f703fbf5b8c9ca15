package nspawn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn"
)

// TestMain runs the tests in a network namespace of their own, which ends with them. The
// test binary is the supervisors' too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "shim" {
		os.Exit(nspawn.Shim(os.Args[2:], nil))
	}
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(agent(os.Args[2], os.Args[3], os.Args[4]))
	}
	if len(os.Args) > 1 && os.Args[1] == "start-process" {
		os.Exit(startOne(os.Args[2], os.Args[3], os.Args[4]))
	}
	if len(os.Args) > 1 && os.Args[1] == "list" {
		os.Exit(list(os.Args[2], os.Args[3]))
	}
	if os.Getenv("MUSTER_TEST_NETNS") != "" {
		if err := loopback(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
		return
	}
	sweepDead()
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), "MUSTER_TEST_NETNS=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// agent launches one machine, says how, and stays until it is killed.
func agent(state, group, text string) int {
	var spec driver.Spec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil {
		var status driver.Status
		status, err = nspawn.New(nspawn.Options{StateDir: state, CgroupPrefix: group, Launcher: testLauncher()}).Launch(context.Background(), spec)
		err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(status))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// startOne starts one process, says how, and stays until it is killed.
func startOne(state, group, text string) int {
	var spec driver.ProcessSpec
	err := json.Unmarshal([]byte(text), &spec)
	if err == nil {
		var status driver.ProcessStatus
		status, err = nspawn.New(nspawn.Options{StateDir: state, CgroupPrefix: group, Launcher: testLauncher()}).StartProcess(context.Background(), spec)
		err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(status))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {}
}

// list prints the machines of a state directory, as the next agent finds them.
func list(state, group string) int {
	all, err := nspawn.New(nspawn.Options{StateDir: state, CgroupPrefix: group}).List(context.Background())
	if err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(all)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// loopback sets lo up, as every real host has it.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
