package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/agent/proc"
)

// fetchTries is how often what cannot be fetched now is tried, with a pause that doubles.
const fetchTries = 4

const firstFetchPause = time.Second

// deploy brings a service's files into its machine. It reports false when something else
// is wanted by then.
func (u *unit) deploy(ctx context.Context, w wanted) (done bool, err error) {
	p, err := u.begun(ctx, w)
	if err != nil {
		return true, err
	}
	if p != nil { // an earlier agent did it
		u.adopted = p.State != driver.Exited
		u.madeOf(proc.Artifact(*p))
		return true, nil
	}
	if w.service.DeployURL == "" {
		return true, nil
	}
	u.look() // others need not wait for what takes time
	reason := "fetching " + w.service.DeployURL
	if u.m.o.Fetch.Keeps(u.artifact()) {
		reason = "unpacking what its node has kept of it"
	}
	u.tell(w, muster.ServiceReportInput{Status: muster.ServiceDeploying, Health: u.unsettled(), Reason: reason})
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := u.whenever(work, w, cancel)
	defer stop()
	pause := firstFetchPause
	for try := 1; ; try++ {
		err = u.install(work, w)
		if work.Err() != nil {
			return false, nil
		}
		if code := muster.CodeOf(err); code == muster.NotFound || code == muster.Unavailable && try == fetchTries {
			err = fmt.Errorf("%w: see that this node can get it, then restart the service", err)
		}
		if err == nil || muster.CodeOf(err) != muster.Unavailable || try == fetchTries {
			return true, err
		}
		u.tell(w, muster.ServiceReportInput{Status: muster.ServiceDeploying, Health: u.unsettled(), Reason: "trying again: " + muster.Printable(err.Error(), 500)})
		select {
		case <-work.Done():
			return false, nil
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// unsettled is the health while it is being deployed.
func (u *unit) unsettled() muster.ServiceHealth {
	if u.mending {
		return muster.HealthBad
	}
	return muster.HealthUnknown
}

// begun returns the process of the wanted generation, if it was started already, so that its
// files are in place.
func (u *unit) begun(ctx context.Context, w wanted) (*driver.ProcessStatus, error) {
	all, err := u.m.processes.ListProcesses(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	for _, p := range all {
		if p.Spec.ProcessRef == w.ref() && proc.Generation(p) == w.service.Generation {
			return &p, nil
		}
	}
	return nil, nil
}

// artifact is the checksum of what the service is made of: that was given, or of what was fetched first.
// Empty: it is not known yet, or nothing is needed any more.
func (u *unit) artifact() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.want.service
	if s == nil || s.Desired == muster.WantTerminated || s.DeployURL == "" {
		return ""
	}
	return cmp.Or(s.SHA256, u.made)
}

// madeOf notes what the service is made of.
func (u *unit) madeOf(checksum string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.made = checksum
}

// whenever cancels work when something else than w is wanted. It takes the unit's
// wake-ups meanwhile, and gives one back.
func (u *unit) whenever(work context.Context, w wanted, cancel context.CancelFunc) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-work.Done():
				return
			case <-u.woken:
				now := u.wanted()
				if now.service == nil || now.service.Generation != w.service.Generation || now.service.Desired != w.service.Desired || now.machine != w.machine || !now.running {
					cancel()
					return
				}
			}
		}
	}()
	return func() {
		cancel()
		<-done
		u.nudge()
	}
}

// install fetches the files and has them unpacked. What was of use is kept, so that nobody needs to be
// asked for it again; what is kept and not in use makes room when the disk is full.
func (u *unit) install(ctx context.Context, w wanted) error {
	installer, ok := u.m.o.Driver.(driver.Artifacts)
	if !ok {
		return muster.Errorf(muster.Invalid, "this node cannot bring files into instances")
	}
	select {
	case u.m.fetches <- struct{}{}:
		defer func() { <-u.m.fetches }()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := u.bring(ctx, w, installer)
	if errors.Is(err, unix.ENOSPC) {
		freed, releaseErr := u.m.o.Fetch.Release(u.m.used())
		if releaseErr != nil {
			u.m.o.Logger.Warn("the disk is full, and artifacts that nothing uses are left", "err", releaseErr)
		}
		if freed > 0 {
			err = u.bring(ctx, w, installer)
		}
	}
	return err
}

// bring does it once.
func (u *unit) bring(ctx context.Context, w wanted, installer driver.Artifacts) error {
	fetched, err := u.m.o.Fetch.Fetch(ctx, w.service.DeployURL, u.artifact())
	if err != nil {
		return err
	}
	defer func() { _ = fetched.Close() }()
	installed, err := installer.Install(ctx, driver.Artifact{Machine: w.machine, Name: string(u.id), File: fetched.File, FileName: fileName(w.service.DeployURL)})
	switch {
	case errors.Is(err, driver.ErrNotFound) || muster.CodeOf(err) == muster.Conflict:
		return muster.Errorf(muster.Unavailable, "its instance does not run: %w", err)
	case err != nil:
		return err
	case installed.Executable == "" && len(w.service.Command) == 0:
		return muster.InvalidField("command", "what %s names is an archive: say which of its files to run", w.service.DeployURL)
	}
	u.madeOf(fetched.SHA256)
	if err := u.m.o.Fetch.Keep(fetched, u.m.used()); err != nil {
		u.m.o.Logger.Warn("the files of a service are not kept: it needs the place that they came from when its instance is started again", "service", u.id, "err", err)
	}
	return nil
}

// uninstall deletes the files. In an instance that does not run they stay for as long as that does.
func (u *unit) uninstall(ctx context.Context, w wanted) error {
	installer, ok := u.m.o.Driver.(driver.Artifacts)
	if !ok || w.service.DeployURL == "" || !w.running {
		return nil
	}
	err := installer.Uninstall(ctx, w.machine, string(u.id))
	if errors.Is(err, driver.ErrNotFound) || muster.CodeOf(err) == muster.Conflict {
		return nil
	}
	return err
}

// Nobody is who services and their checks run as that do not say.
const Nobody = "65534"

// Surroundings are where a service's process and its checks run, unless it says otherwise, and in which PATH their
// commands are looked for; empty: what is usual in the instance.
func Surroundings(id muster.ServiceID, from, dir string) (where, lookup string) {
	if from == "" {
		return dir, ""
	}
	files := path.Join(driver.ArtifactsDir, string(id))
	lookup = strings.Join([]string{files, path.Join(files, "bin"), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, ":")
	return cmp.Or(dir, files), lookup
}

// fileName is how one executable is called: as its URL ends, where that is a name.
func fileName(from string) string {
	u, err := url.Parse(from)
	if err != nil {
		return "app"
	}
	if name := path.Base(u.Path); muster.CheckName("name", name) == nil {
		return name
	}
	return "app"
}
