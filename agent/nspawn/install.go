package nspawn

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/nspawn/cgroup"
)

// The defaults of driver.Artifact.
const (
	artifactBytes   = 4 << 30
	artifactEntries = 100_000
)

// installOrder is what to unpack in a machine, and where.
type installOrder struct {
	Leader   process      `json:"leader"`
	Group    cgroup.Group `json:"group"`
	Name     string       `json:"name"`
	FileName string       `json:"fileName"`
	Unpacked int64        `json:"unpacked"`
	Entries  int          `json:"entries"`
	Gone     bool         `json:"gone"` // it is to be deleted
}

// installNews is how it went.
type installNews struct {
	Installed driver.Installed `json:"installed"`
	Refused   string           `json:"refused"` // what is wrong with the artifact
	Failed    string           `json:"failed"`  // what else went wrong
	Full      bool             `json:"full"`    // it is that there is no room
}

// Install implements driver.Artifacts. It is unpacked by a process in the machine, with its root and its limits: whatever the
// machine's own root puts in the way leads nowhere but into the machine.
func (d *Driver) Install(ctx context.Context, a driver.Artifact) (driver.Installed, error) {
	if err := a.Validate(); err != nil {
		return driver.Installed{}, err
	}
	o := installOrder{Name: a.Name, FileName: a.FileName, Unpacked: a.Unpacked, Entries: a.Entries}
	if muster.CheckName("fileName", o.FileName) != nil {
		o.FileName = "app"
	}
	if o.Unpacked <= 0 {
		o.Unpacked = artifactBytes
	}
	if o.Entries <= 0 {
		o.Entries = artifactEntries
	}
	return d.installing(ctx, a.Machine, o, a.File)
}

// Uninstall implements driver.Artifacts, as Install does.
func (d *Driver) Uninstall(ctx context.Context, machine, name string) error {
	if err := muster.CheckName("name", name); err != nil {
		return err
	}
	_, err := d.installing(ctx, machine, installOrder{Name: name, Gone: true}, nil)
	return err
}

// installing carries an order out in a machine that runs; one of a name at a time.
func (d *Driver) installing(ctx context.Context, machine string, o installOrder, from *os.File) (driver.Installed, error) {
	unlock, err := d.keys.lock(ctx, machine+".install."+o.Name) // no process is called so: it would have one dot
	if err != nil {
		return driver.Installed{}, err
	}
	defer unlock()
	r, p, err := d.runningMachine(ctx, machine)
	if err != nil {
		return driver.Installed{}, err
	}
	o.Leader, o.Group = p.Leader, r.Group.Below("install-"+rand.Text())
	news, err := d.install(ctx, o, from)
	switch {
	case ctx.Err() != nil:
		return driver.Installed{}, ctx.Err()
	case err != nil:
		return driver.Installed{}, fmt.Errorf("unpack %s in %s: %w", o.Name, machine, err)
	case news.Refused != "":
		return driver.Installed{}, muster.Errorf(muster.Invalid, "%s", news.Refused)
	case news.Full:
		return driver.Installed{}, &muster.Error{
			Code: muster.Limit, Err: unix.ENOSPC,
			Message: fmt.Sprintf("unpack %s in %s: %s: free some space on the instance's disk, or take an instance with a larger one", o.Name, machine, news.Failed),
		}
	case news.Failed != "":
		return driver.Installed{}, fmt.Errorf("unpack %s in %s: %s", o.Name, machine, news.Failed)
	}
	return news.Installed, nil
}

// install runs the process that unpacks, and kills it when ctx ends.
func (d *Driver) install(ctx context.Context, o installOrder, from *os.File) (news installNews, err error) {
	cmd, sealed, err := d.shimCommand(verbInstall, "-")
	if err != nil {
		return news, err
	}
	defer sealed.Close()
	given, err := handOver(o)
	if err != nil {
		return news, err
	}
	defer given.Close()
	told, tells, err := os.Pipe()
	if err != nil {
		return news, err
	}
	defer told.Close()
	if cmd.ExtraFiles = []*os.File{given, tells}; from != nil {
		cmd.Stdin = from
	}
	if err := errors.Join(cmd.Start(), tells.Close()); err != nil {
		return news, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	defer stop()
	text, err := io.ReadAll(io.LimitReader(told, 1<<20))
	if err == nil && len(text) == 0 {
		err = errors.New("it was killed: is the instance out of memory?")
	}
	if err == nil {
		err = json.Unmarshal(text, &news)
	}
	if ended := cmd.Wait(); err != nil {
		err = errors.Join(err, ended)
	}
	return news, errors.Join(err, o.Group.Remove())
}
