package nspawn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/network"
)

// What Options.ResolvConf can be beside a file.
const (
	// ResolvAuto gives machines the name servers of the host that they can reach. Without any, the image's own file is left.
	ResolvAuto = "auto"
	// ResolvOff leaves the image's own file.
	ResolvOff = "off"
)

// Resolver returns what a machine that is launched now would have as /etc/resolv.conf; empty: what its image has.
// UNAVAILABLE: the file of Options.ResolvConf cannot be read.
func (d *Driver) Resolver() (string, error) {
	switch d.opts.ResolvConf {
	case ResolvOff:
		return "", nil
	case ResolvAuto:
		return network.Resolver(network.ResolvConfs()...), nil
	}
	text, err := os.ReadFile(d.opts.ResolvConf)
	if err != nil {
		return "", muster.Errorf(muster.Unavailable, "the machines' resolv.conf cannot be read: give another one with --resolv-conf, or auto: %w", err)
	}
	return string(text), nil
}

// setResolver writes the machine's /etc/resolv.conf once its root is mounted. What is there, such as a link to where systemd
// would put one, is replaced. Links that lead out of the root are not followed.
func (m machine) setResolver(text string) error {
	if text == "" {
		return nil
	}
	err := func() error {
		root, err := os.OpenRoot(m.path("root"))
		if err != nil {
			return err
		}
		defer root.Close()
		if err := root.MkdirAll("etc", 0o755); err != nil {
			return err
		}
		if err := root.Remove("etc/resolv.conf"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.WriteFile("etc/resolv.conf", []byte(text), 0o644)
	}()
	if err != nil {
		return fmt.Errorf("write its /etc/resolv.conf: %w; with --resolv-conf off the agent leaves it alone", err)
	}
	return nil
}
