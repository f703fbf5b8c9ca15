package registry_test

import (
	"errors"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/watch"
)

func TestScope_Services(t *testing.T) {
	w := newTown(t, muster.Operator)
	ids := map[*muster.Instance]muster.ServiceID{}
	for _, i := range []*muster.Instance{w.in, w.out} {
		s, _, err := w.RegisterService(ctx, muster.RegisterServiceInput{
			InstanceID: i.ID, Name: "web", Checks: []muster.Check{{Name: "own", Kind: muster.TTLCheck}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ids[i] = s.ID
	}
	seen := w.Seen(w.holder)
	for name, f := range map[string]*muster.ServiceFilter{"all": nil, "of an instance": {InstanceID: &w.in.ID}, "of a node": {NodeID: new("a1")}} {
		if c, err := seen.Services(f, muster.PageInput{}); err != nil || c.TotalCount() != 1 || c.Edges[0].Node.ID != ids[w.in] {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
	if c, err := seen.Services(&muster.ServiceFilter{InstanceID: &w.out.ID}, muster.PageInput{}); err != nil || c.TotalCount() != 0 || len(c.Edges) != 0 {
		t.Errorf("services of an instance outside: %+v, %v", c, err)
	}
	_, err := seen.Services(&muster.ServiceFilter{NodeID: new("b1")}, muster.PageInput{})
	wantCode(t, err, muster.NotFound)
	if seen.Service(ids[w.out]) != nil || seen.Service(ids[w.in]) == nil {
		t.Error("a service outside is seen, or one inside is not")
	}
	foreign := ids[w.out]
	for name, err := range map[string]error{
		"deploy":    errOf3(w.DeployService(w.holder, muster.DeployServiceInput{InstanceID: &w.out.ID, Name: "x", Command: []string{"x"}})),
		"register":  errOf3(w.RegisterService(w.holder, muster.RegisterServiceInput{InstanceID: w.out.ID, Name: "x"})),
		"start":     errOf3(w.StartService(w.holder, foreign)),
		"stop":      errOf3(w.StopService(w.holder, foreign)),
		"restart":   errOf3(w.RestartService(w.holder, foreign)),
		"remove":    errOf3(w.RemoveService(w.holder, foreign)),
		"check":     errOf(w.ReportCheck(w.holder, muster.ReportCheckInput{ServiceID: foreign, Check: "own", Status: muster.CheckOK})),
		"logs":      w.ServiceLogs(w.holder, foreign, muster.InstanceLogsInput{}, func(*muster.LogPiece) error { return errors.New("a piece") }),
		"health of": errOf(w.WatchHealth(w.holder, &muster.HealthFilter{ServiceID: &foreign}, watch.Request{})),
	} {
		if muster.CodeOf(err) != muster.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	events, err := w.WatchServices(w.holder, nil, watch.Request{Initial: true})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Service == nil || e.Service.ID != ids[w.in] {
		t.Errorf("told of %+v first", e.Service)
	}
	if e := <-events; e.Type != muster.EventSynced {
		t.Errorf("told of %+v next", e.Service)
	}
}

func TestScope_OfARegistrar(t *testing.T) {
	w := newTown(t, muster.Viewer)
	var services []*muster.Service
	for _, name := range []string{"web-1", "db"} {
		s, _, err := w.RegisterService(ctx, muster.RegisterServiceInput{
			InstanceID: w.in.ID, Name: name, Checks: []muster.Check{{Name: "own", Kind: muster.TTLCheck}},
		})
		if err != nil {
			t.Fatal(err)
		}
		services = append(services, s)
	}
	_, text := w.made(t, muster.CreateAccessKeyInput{Name: "web", Role: muster.Registrar, Scope: &muster.KeyScope{Services: []string{"web-*"}}})
	registrar := w.world.holder(t, text)
	report := func(s *muster.Service) error {
		_, err := w.ReportCheck(registrar, muster.ReportCheckInput{ServiceID: s.ID, Check: "own", Status: muster.CheckOK})
		return err
	}
	wantCode(t, report(services[0]), muster.Unavailable) // there is no agent
	wantCode(t, report(services[1]), muster.NotFound)
	seen := w.Seen(registrar)
	if seen.Node("a1") != nil || seen.Instance(w.in.ID) != nil || seen.Service(services[0].ID) != nil || len(seen.ClusterHealth().Nodes) > 0 {
		t.Error("a REGISTRAR reads")
	}
}
