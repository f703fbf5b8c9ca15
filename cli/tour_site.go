package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

const (
	siteName = "site"
	sitePort = 8080
	sitePage = "<!doctype html><title>muster</title><h1>It runs</h1><p>A service in an instance of muster."
)

// tellSite deploys a page into the first instance, unless it is there already, and says where it is to be seen.
func (t *tour) tellSite(ctx context.Context, i *client.Instance) error {
	began := time.Now()
	s, how, err := t.site(ctx, i)
	if err != nil {
		return err
	}
	w := serviceWaiting{serviceHealthy, tourPatience}
	if s, err = w.await(ctx, t.api, s, func(*client.Service) {}); err != nil {
		return err
	}
	at := "no port of this machine's"
	if s.Publish != nil {
		at = fmt.Sprintf("http://127.0.0.1:%d/", s.Publish.Port)
	}
	t.line("service", "%s %q %s: %s at %s (%s)", s.ID, s.Name, how, t.painter()(string(s.Health)), at, took(began))
	return nil
}

// site returns the service of an earlier run, started again if it has ended, or deploys a new one.
func (t *tour) site(ctx context.Context, i *client.Instance) (s *client.Service, how string, err error) {
	name := siteName
	for s, err := range t.api.AllServices(ctx, &muster.ServiceFilter{Name: &name, InstanceID: &i.ID}) {
		if err != nil {
			return nil, "", err
		}
		switch s.Status {
		case muster.ServiceRemoving, muster.ServiceRemoved:
		case muster.ServiceStopped, muster.ServiceFailed:
			s, err := t.api.StartService(ctx, s.ID)
			return s, "started again", err
		default:
			return s, "is still here", nil
		}
	}
	s, err = t.api.DeployService(ctx, muster.DeployServiceInput{
		InstanceID: &i.ID, Name: siteName, Port: sitePort, Publish: &muster.Published{Protocol: muster.TCP},
		Command: []string{"sh", "-c", fmt.Sprintf("mkdir -p /tmp/site && echo '%s' >/tmp/site/index.html && exec httpd -f -p %d -h /tmp/site", sitePage, sitePort)},
		Checks:  []muster.Check{{Name: "page", Kind: muster.HTTPCheck, Body: "It runs"}},
	})
	return s, "deployed", err
}
