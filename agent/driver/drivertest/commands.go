package drivertest

import (
	"fmt"
	"strconv"
)

// Commands are the payloads that the suite needs, in the language of a harness.
type Commands struct {
	Idle     []string                                 // prints "ready" and runs until stopped; ends gracefully
	Stubborn []string                                 // ignores a graceful stop; prints "ready" first
	Describe []string                                 // prints HOSTNAME=… and each variable as NAME=value, one a line
	Missing  []string                                 // is not in the image
	Exit     func(status int, output string) []string // prints and exits
	OnTerm   func(status int, output string) []string // prints "ready"; on a graceful stop prints output and exits
	Write    func(path, text string) []string         // writes a file
	Append   func(path, text string) []string         // appends a line to a file and prints all of it
	Read     func(path string) []string               // prints a file
}

// ShellCommands are the payloads for an image with a shell.
func ShellCommands() Commands {
	sh := func(format string, args ...any) []string {
		return []string{"/bin/sh", "-c", fmt.Sprintf(format, args...)}
	}
	const wait = "while :; do sleep 60 & wait $!; done"
	return Commands{
		Idle:     sh("trap 'exit 0' TERM; echo ready; " + wait),
		Stubborn: sh("trap '' TERM; echo ready; while :; do sleep 60; done"),
		Describe: sh("echo HOSTNAME=$(hostname); env"),
		Missing:  []string{"/bin/nosuch", "argument"},
		Exit: func(status int, output string) []string {
			return sh("echo %s; exit %d", output, status)
		},
		OnTerm: func(status int, output string) []string {
			return sh("trap 'echo %s; exit %d' TERM; echo ready; %s", output, status, wait)
		},
		Write:  func(path, text string) []string { return sh("echo %s >%s", text, path) },
		Append: func(path, text string) []string { return sh("echo %s >>%s; cat %[2]s", text, path) },
		Read:   func(path string) []string { return sh("cat %s", path) },
	}
}

// FakeCommands are the payloads that a Host knows from the start; its further
// programs come by Host.Program.
func FakeCommands() Commands {
	return Commands{
		Idle:     []string{"idle"},
		Stubborn: []string{"stubborn"},
		Describe: []string{"describe"},
		Missing:  []string{"/bin/nosuch", "argument"},
		Exit: func(status int, output string) []string {
			return []string{"exit", strconv.Itoa(status), output}
		},
		OnTerm: func(status int, output string) []string {
			return []string{"on-term", strconv.Itoa(status), output}
		},
		Write:  func(path, text string) []string { return []string{"write", path, text} },
		Append: func(path, text string) []string { return []string{"append", path, text} },
		Read:   func(path string) []string { return []string{"read", path} },
	}
}
