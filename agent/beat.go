package agent

import (
	"context"
	"time"

	"github.com/muster-cloud/muster"
)

// beat registers the node and keeps saying that it lives. Nothing else in the
// agent can hold it up.
func (a *Agent) beat(ctx context.Context) error {
	first := true
	for ctx.Err() == nil {
		if err := a.register(ctx, first); err != nil {
			return err
		}
		first = false
		if err := a.beatWhileKnown(ctx); err != nil {
			return err
		}
	}
	return nil
}

// register announces the node until the registry takes it. It returns an error
// when trying again is of no use, and nil when ctx ends.
func (a *Agent) register(ctx context.Context, first bool) error {
	p, away := a.newPauses(), a.complaint("the node is not registered yet")
	for {
		err := a.registerOnce(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case final(err) || first && hopeless(err):
			return err
		}
		pause := p.next(a.interval())
		away.log(ctx, err, pause)
		if !sleep(ctx, pause, nil) {
			return nil
		}
	}
}

func (a *Agent) registerOnce(ctx context.Context) error {
	report, err := a.inventory(ctx)
	if err != nil {
		return err
	}
	is, _ := a.identity()
	diskLimits := a.diskLimits(ctx) // which may take a moment
	a.mu.Lock()
	input := muster.RegisterNodeInput{
		ID: a.o.ID, BirthToken: is.Birth, Hostname: a.o.hostname, Addr: a.state.addr, Port: a.state.port, Secure: a.o.Credentials.Secure(), Role: a.o.Role,
		CPUCount: a.o.CPUs, MemoryMB: a.o.MemoryMB, Labels: a.o.Labels,
		Incarnation: is.Incarnation, Version: a.o.Version, BootID: a.o.BootID,
		Images: report.Images, Volumes: report.Volumes, HostPaths: a.hostPaths(), DiskLimits: diskLimits,
		Epoch: report.Epoch, AppliedRevision: report.AppliedRevision, Instances: report.Instances,
	}
	a.mu.Unlock()
	if is.UID != "" {
		input.UID = &is.UID
	}
	answer, err := a.o.Registry.RegisterNode(ctx, input)
	if err != nil {
		return err
	}
	if answer.Node == nil || answer.Server == nil {
		return muster.Errorf(muster.Internal, "the registry took the registration and did not say as whom: see its log")
	}
	a.remember(answer.Node.UID, answer.Server.ClusterUID, answer.Server.Epoch)
	report.UID, report.Incarnation = answer.Node.UID, is.Incarnation
	a.mu.Lock()
	a.state.registered = true
	a.state.accepted, a.state.taken = report, 0
	a.setIntervalLocked(answer.Server.HeartbeatInterval)
	a.mu.Unlock()
	a.o.Logger.Info("the node is registered", "node", a.o.ID, "uid", answer.Node.UID, "incarnation", is.Incarnation)
	a.named(answer.Remove)
	a.fetchDue.raise()
	a.reportDue.raise()
	a.attendDue.raise()
	a.routeDue.raise()
	return nil
}

// remember keeps who the registry said that this node is. A disk that is full is
// no reason to fall silent: what could not be written is written later.
func (a *Agent) remember(uid muster.NodeUID, cluster, epoch string) {
	is, _ := a.identity()
	if is.UID == uid && is.ClusterUID == cluster && is.Epoch == epoch {
		return
	}
	if err := a.state.file.update(func(is *identity) { is.UID, is.ClusterUID, is.Epoch = uid, cluster, epoch }); err != nil {
		a.o.Logger.Error("the agent would not know who it is after a restart", "node", a.o.ID, "err", err)
	}
}

// beatWhileKnown beats until the registry no longer knows the node, which is no
// error, or until the agent must not go on.
func (a *Agent) beatWhileKnown(ctx context.Context) error {
	p, away := a.newPauses(), a.complaint("a beat was not taken")
	for wait := a.jittered(a.interval()); sleep(ctx, wait, a.registerDue); {
		if !a.isRegistered() {
			return nil
		}
		err := a.beatOnce(ctx)
		switch {
		case err == nil:
			p.reset()
			away.end()
			wait = a.jittered(a.interval())
			continue
		case ctx.Err() != nil:
			return nil
		case final(err):
			return err
		case muster.CodeOf(err) == muster.UnknownNode:
			a.forgotten()
			return nil
		}
		wait = p.next(a.interval())
		away.log(ctx, err, wait)
	}
	return nil
}

func (a *Agent) beatOnce(ctx context.Context) error {
	is, _ := a.identity()
	tryCtx, cancel := context.WithTimeout(ctx, a.interval())
	defer cancel()
	now := time.Now().UTC()
	a.mu.Lock()
	usage := a.state.usage
	a.mu.Unlock()
	beat, err := a.o.Registry.Heartbeat(tryCtx, muster.HeartbeatInput{UID: is.UID, Incarnation: is.Incarnation, SentAt: &now, Usage: usage})
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.setIntervalLocked(beat.NextBeatIn)
	if beat.ReportSequence != a.state.taken {
		a.state.accepted = nil // a restart forgot it, or what came late undid it
	}
	desired := a.state.desired
	a.state.peersTag = beat.Peers
	a.mu.Unlock()
	if desired == nil || desired.Epoch != beat.Epoch || desired.DesiredRevision != beat.DesiredRevision {
		a.fetchDue.raise()
	}
	a.passDue.raise() // whatever the driver did not tell of
	a.reportDue.raise()
	a.routeDue.raise()
	return nil
}

// forgotten notes that the registry does not know this node: what it knew has
// to be told anew.
func (a *Agent) forgotten() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.registered = false
	a.o.Logger.Info("the registry does not know the node; registering again", "node", a.o.ID)
}

// unknown handles UNKNOWN_NODE outside of the beats.
func (a *Agent) unknown() {
	a.forgotten()
	a.registerDue.raise()
}

func (a *Agent) isRegistered() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.registered
}

func (a *Agent) interval() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state.interval
}

func (a *Agent) setIntervalLocked(d time.Duration) {
	if d > 0 {
		a.state.interval = d
	}
}

// jittered is up to a tenth less, so that nodes which began together drift apart.
func (a *Agent) jittered(d time.Duration) time.Duration {
	return d - time.Duration(a.o.Random()*float64(d/10))
}
