package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// stopTimeout is what a payload has to end when systemd stops its unit, such as when the host shuts down.
const stopTimeout = 30 * time.Second

// sliceName is what the name of a slice can be without having to be escaped.
var sliceName = regexp.MustCompile(`^[a-zA-Z0-9_.]+(-[a-zA-Z0-9_.]+)*$`)

// units has the host's systemd run each machine as a transient unit, which has the supervisor as its main process.
type units struct {
	opts Options
}

// runsSystemd reports whether systemd is the host's process 1.
func runsSystemd() bool { return exists("/run/systemd/system") }

func (l units) check(ctx context.Context) error {
	if !runsSystemd() {
		return muster.Errorf(muster.Unavailable, "systemd does not run this host: use --launcher direct")
	}
	if !sliceName.MatchString(l.opts.CgroupPrefix) {
		return muster.Errorf(muster.Unavailable, "%.80q cannot name a slice of systemd's: use letters, digits and single hyphens", l.opts.CgroupPrefix)
	}
	for _, kind := range []string{"mnt", "net", "pid"} {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		if host, err := os.Readlink("/proc/1/ns/" + kind); err == nil && host != own {
			return muster.Errorf(muster.Unavailable, "the agent has a %s namespace of its own, so that systemd would start machines beside what the agent prepares for them: leave PrivateTmp=, ProtectSystem=, PrivateNetwork= and the like out of its unit, or use --launcher direct", kind)
		}
	}
	if err := callSystemd(ctx, func(context.Context, *systemd.Conn) error { return nil }); err != nil {
		return err
	}
	_, err := cgroup.At("", "/")
	return err
}

// callSystemd calls systemd over a connection that ends with the call, as it would with systemd's next restart.
func callSystemd(ctx context.Context, call func(context.Context, *systemd.Conn) error) error {
	bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := systemd.NewWithContext(bounded)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return muster.Errorf(muster.Unavailable, "systemd does not answer: apt-get install dbus, and see systemctl status dbus: %w", err)
	}
	defer conn.Close()
	if err = call(bounded, conn); ctx.Err() != nil { // the connection ended with it
		err = ctx.Err()
	}
	return err
}

func (l units) hasten() {}

func (l units) place(ctx context.Context, r *record) (err error) {
	r.Unit = l.opts.CgroupPrefix + "-" + r.Spec.Machine + ".service"
	r.Register = machined(ctx)
	r.Group, err = cgroup.At("", path.Join(slicePath(l.opts.CgroupPrefix), r.Unit))
	return err
}

// slicePath returns where systemd has the group of a slice: each hyphen is a step down.
func slicePath(name string) string {
	dir, words := "/", strings.Split(name, "-")
	for i := range words {
		dir = path.Join(dir, strings.Join(words[:i+1], "-")+".slice")
	}
	return dir
}

// machined reports whether systemd-machined answers, which `machinectl` asks.
func machined(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return false
	}
	defer conn.Close()
	ping := conn.Object("org.freedesktop.machine1", "/org/freedesktop/machine1").CallWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", 0)
	return ping.Err == nil
}

// prepare does nothing: systemd makes the group when it starts the unit.
func (l units) prepare(record) error { return nil }

func (l units) start(ctx context.Context, m machine, r record, to handover) (*os.Process, error) {
	self, err := l.opts.self()
	if err != nil {
		return nil, err
	}
	log, err := m.supervisorLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	properties := append(unitProperties(r), l.process(self, m)...)
	for name, file := range map[string]*os.File{"Input": to.lock, "Output": to.ready, "Error": log} {
		properties = append(properties, property("Standard"+name+"FileDescriptor", dbus.UnixFD(file.Fd())))
	}
	// The unit of an earlier start of the machine takes a moment to go.
	err = callSystemd(ctx, func(ctx context.Context, conn *systemd.Conn) error {
		return poll(ctx, func() (bool, error) {
			_, err := conn.StartTransientUnitContext(ctx, r.Unit, "fail", properties, nil)
			if isUnitThere(err) {
				return false, nil
			}
			return true, err
		})
	})
	if err != nil {
		return nil, fmt.Errorf("have systemd start %s: %w", r.Unit, err)
	}
	return nil, nil
}

// process is the supervisor as the unit's main process.
func (l units) process(self string, m machine) []systemd.Property {
	dir := strings.ReplaceAll(m.dir(), "$", "$$") // it would be taken for a variable
	return []systemd.Property{
		systemd.PropSlice(l.opts.CgroupPrefix + ".slice"),
		systemd.PropExecStart([]string{self, "shim", verbUnit, dir}, false),
		property("Environment", l.opts.environ()),
	}
}

// unitProperties are what `systemd-run` is given as -p NAME=VALUE.
func unitProperties(r record) []systemd.Property {
	return []systemd.Property{
		systemd.PropDescription(fmt.Sprintf("muster instance %s, generation %d", r.Spec.Instance, r.Spec.Generation)),
		systemd.PropType("notify"),
		property("NotifyAccess", "all"),
		property("TimeoutStartUSec", micros(r.StartTimeout+time.Minute)), // the supervisor knows better what was not in time
		property("TimeoutStopUSec", micros(stopTimeout)),
		property("KillMode", "mixed"), // the supervisor tells the payload
		property("CollectMode", "inactive-or-failed"),
		property("Delegate", true),
		property("OOMPolicy", "continue"),
		property("OOMScoreAdjust", int32(-1000)), // the payload has a higher one
		property("MemoryMax", uint64(r.Limits.MemoryMB)<<20),
		property("MemorySwapMax", uint64(0)),
		property("TasksMax", uint64(r.Limits.Processes)),
	}
}

func property(name string, value any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

func micros(d time.Duration) uint64 { return uint64(d.Microseconds()) }

func isUnitThere(err error) bool {
	failure, ok := errors.AsType[dbus.Error](err)
	return ok && failure.Name == "org.freedesktop.systemd1.UnitExists"
}

// limitUnit has systemd set the CPU quota of a unit.
func limitUnit(ctx context.Context, r record) error {
	const perCent = 10_000 // µs a second
	quota := property("CPUQuotaPerSecUSec", uint64(r.Limits.CPUPercent)*perCent)
	err := callSystemd(ctx, func(ctx context.Context, conn *systemd.Conn) error {
		return conn.SetUnitPropertiesContext(ctx, r.Unit, true, quota)
	})
	if err != nil {
		return fmt.Errorf("set the CPU quota of %s: %w", r.Unit, err)
	}
	return nil
}

// stopUnit has systemd end a unit, or not start it if it has yet to. One that is not there is no error.
func stopUnit(ctx context.Context, name string) error {
	err := callSystemd(ctx, func(ctx context.Context, conn *systemd.Conn) error {
		_, err := conn.StopUnitContext(ctx, name, "replace", nil)
		return err
	})
	if failure, ok := errors.AsType[dbus.Error](err); ok && failure.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil
	}
	return err
}

// hostStops reports whether systemd is shutting the host down.
func hostStops() bool {
	if !runsSystemd() {
		return false
	}
	if comm, err := os.ReadFile("/proc/1/comm"); err == nil && strings.HasPrefix(string(comm), "systemd-shutdow") {
		return true // nobody answers any more
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	stopping := false
	_ = callSystemd(ctx, func(_ context.Context, conn *systemd.Conn) error { // no answer: it is not known to stop
		state, err := conn.GetManagerProperty("SystemState")
		stopping = strings.Contains(state, "stopping")
		return err
	})
	return stopping
}
