package nspawn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/image"
	"github.com/muster-cloud/muster/agent/network"
)

// idle is what runs in an image without an init when nothing is asked for.
func idle() []string {
	return []string{"/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"}
}

// payload returns what runs: the command, else the image's own init, else one that idles.
func payload(spec driver.Spec, img image.Image) (command []string, boot bool) {
	switch {
	case len(spec.Command) > 0:
		return spec.Command, false
	case img.Boot:
		return nil, true
	case img.Init != "":
		return []string{img.Init}, false
	}
	return idle(), false
}

// arguments returns systemd-nspawn's command line.
func (r record) arguments(root string) []string {
	args := []string{
		"--quiet", "--keep-unit", fmt.Sprintf("--register=%t", r.Register),
		"--directory=" + root, "--machine=" + r.Spec.Machine,
		"--hostname=" + strings.ReplaceAll(r.Spec.Hostname, "_", "-"), // a host name has no underscores
		"--link-journal=no", "--resolv-conf=off", "--timezone=off",
		"--no-new-privileges=yes", // no program of set-user-id makes more of a user; services have it too
		"--oom-score-adj=500",     // rather a machine than its supervisor or the agent
	}
	if r.Spec.Addr == "" {
		args = append(args, "--private-network")
	} else {
		args = append(args, "--network-namespace-path="+network.Namespace(r.Spec.Machine))
	}
	if r.Boot {
		// A pipe would lose the output: systemd writes to /dev/console, which only a terminal gives.
		args = append(args, "--console=read-only", "--boot", "--notify-ready=yes")
	} else {
		args = append(args, "--console=pipe", "--as-pid2")
	}
	args = append(args, r.bindArguments()...)
	if settings(r.Spec.Env) == "" {
		for _, name := range slices.Sorted(maps.Keys(r.Spec.Env)) {
			args = append(args, "--setenv="+name+"="+r.Spec.Env[name])
		}
	}
	return append(append(args, "--"), r.Command...)
}

// settings returns a settings file with the environment, so that it is not on a command line, which
// everybody on the host can read. It is empty when there is no environment, or one that such a
// file cannot have: a value with a line break.
func settings(env map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsAny(name+env[name], "\n\r") {
			return ""
		}
		// Quotes are all that is special, and they end each other: 'it'"'"'s'.
		fmt.Fprintf(&text, "Environment='%s'\n", strings.ReplaceAll(name+"="+env[name], "'", `'"'"'`))
	}
	if text.Len() == 0 {
		return ""
	}
	return "[Exec]\n" + text.String()
}
