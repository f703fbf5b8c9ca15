package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// newNamespace makes a named network namespace. The calling thread is back in its
// own afterwards.
func newNamespace(name string) (netns.NsHandle, error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), fmt.Errorf("own network namespace: %w", err)
	}
	defer own.Close()
	ns, err := netns.NewNamed(name)
	if err == nil {
		admitLowPorts()
	}
	if back := netns.Set(own); back != nil {
		// The thread stays locked, so that it ends with the goroutine: no other code may run in this namespace.
		return netns.None(), fmt.Errorf("return to the own network namespace: %w", errors.Join(back, err))
	}
	runtime.UnlockOSThread()
	if err != nil {
		return netns.None(), fmt.Errorf("network namespace %s: %w", name, err)
	}
	return ns, nil
}

// admitLowPorts lets everybody in this thread's network namespace have ports below 1024: in a
// network of an instance's own they are nobody else's, and services run as nobody.
func admitLowPorts() {
	// Where that cannot be written they are root's, as on any machine.
	_ = os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
}

// deleteNamespace removes the name; the namespace goes with its last process.
func deleteNamespace(name string) error {
	path := Namespace(name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing is mounted there
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	// Unlinking detaches the mounts of it in other mount namespaces, such as the supervisors', too.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("network namespace %s: %w", name, err)
	}
	return nil
}

// configure sets lo and eth0 up inside, with the address and the default route.
func configure(ns netns.NsHandle, addr netip.Prefix, gateway netip.Addr) error {
	inside, err := netlink.NewHandleAt(ns)
	if err != nil {
		return fmt.Errorf("netlink inside: %w", err)
	}
	defer inside.Close()
	for _, name := range []string{"lo", "eth0"} {
		link, err := inside.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look for %s inside: %w", name, err)
		}
		if name == "eth0" {
			if err := inside.AddrAdd(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
				return fmt.Errorf("address %s inside: %w", addr, err)
			}
		}
		if err := inside.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up inside: %w", name, err)
		}
	}
	if err := inside.RouteAdd(&netlink.Route{Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("route by %s inside: %w", gateway, err)
	}
	return nil
}
