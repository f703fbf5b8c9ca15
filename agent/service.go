package agent

import (
	"context"
	"maps"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/deploy"
	"github.com/muster-cloud/muster/agent/driver"
	"github.com/muster-cloud/muster/client"
)

// deployment is what the manager of services gets.
func (a *Agent) deployment() deploy.Options {
	o := a.o.Deploy
	o.Driver, o.Logger, o.Changed = a.o.Driver, a.o.Logger, a.reportDue.raise
	return o
}

// wantServices tells the manager of services what is wanted of the machines as they are.
func (a *Agent) wantServices(machines []driver.Status) {
	a.mu.Lock()
	desired, fetched, k := a.state.desired, a.state.fetched, a.marksLocked()
	k.remove = maps.Clone(k.remove)
	a.mu.Unlock()
	if desired == nil {
		return
	}
	running := map[string]bool{}
	for _, m := range machines {
		running[m.Spec.Machine] = m.State == driver.Running
	}
	all := places(desired, machines)
	wanted := make([]deploy.Machine, 0, len(desired.Instances))
	for _, w := range desired.Instances {
		in := deploy.Machine{
			Name: w.Machine, Addr: w.Addr, Running: running[w.Machine] && w.Desired == muster.WantRunning, Services: w.Services, Told: fetched,
		}
		if m, _ := all[diskOf(w.Machine)].drained(k, fetched); m != nil {
			in.Name, in.Running = m.Spec.Machine, true
		}
		wanted = append(wanted, in)
	}
	a.services.Want(wanted)
	a.mu.Lock()
	news := a.state.told != desired
	a.state.told = desired
	a.mu.Unlock()
	if news {
		a.reportDue.raise()
	}
}

// maxCheckOutputs bounds what checks wrote in one report, in bytes of JSON.
const maxCheckOutputs = 256 << 10

// withServices adds how the services are to the reports of their machines.
func (a *Agent) withServices(reports []muster.InstanceReportInput) {
	total, outputs := 0, 0
	for i := range reports {
		reports[i].Services = a.services.Reports(reports[i].Machine)
		for _, s := range reports[i].Services {
			for _, c := range s.Checks {
				total, outputs = total+encoded(c.Output), outputs+1
			}
		}
	}
	if total <= maxCheckOutputs {
		return
	}
	for i := range reports {
		for _, s := range reports[i].Services {
			for k := range s.Checks {
				c := &s.Checks[k]
				for encoded(c.Output) > maxCheckOutputs/outputs && c.Output != "" {
					c.Output = muster.Storable(c.Output, len(c.Output)/2)
				}
			}
		}
	}
}

// run has a command run in a machine, once the registry knows that it will be.
func (a *Agent) run(ctx context.Context, request muster.ExecRequest) {
	sessions, ok := a.o.Registry.(Sessions)
	runner, able := a.o.Driver.(driver.Exec)
	if !ok || !able {
		return
	}
	err := sessions.ServeExec(ctx, request.Session, func(ctx context.Context, streams client.ExecStreams) muster.ExecExited {
		spec := driver.ExecSpec{Machine: request.Machine, Command: request.Command, Env: request.Env, User: request.User, Dir: request.Dir}
		if spec.User == "" {
			spec.User = "0"
		}
		if request.Terminal {
			spec.Window = &driver.Window{Rows: uint16(request.Rows), Columns: uint16(request.Columns)}
		}
		resize, stop := windows(streams.Resize)
		defer stop()
		exit, err := runner.Exec(ctx, spec, driver.Streams{Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.Stderr, Resize: resize})
		if err != nil {
			return muster.ExecExited{Code: 126, Failure: muster.Storable(err.Error(), muster.MaxReasonBytes)}
		}
		return muster.ExecExited{Code: exit.Code, Failure: exit.Failure}
	})
	if err != nil && ctx.Err() == nil {
		a.o.Logger.Debug("the session of a command was lost", "node", a.o.ID, "machine", request.Machine, "err", err)
	}
}

// windows passes the sizes of a terminal on until stop is called.
func windows(sizes <-chan muster.ExecSize) (out <-chan driver.Window, stop func()) {
	passed, quit, done := make(chan driver.Window), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case size := <-sizes:
				select {
				case passed <- driver.Window{Rows: uint16(size.Rows), Columns: uint16(size.Columns)}:
				case <-quit:
					return
				}
			}
		}
	}()
	return passed, func() { close(quit); <-done }
}
