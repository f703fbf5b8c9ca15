package registration_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/muster-cloud/muster/registration"
)

// patiently is eventually for what waits until a cluster has elected somebody.
func patiently(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come true", what)
		}
	}
}

func inCluster(t testing.TB, c *natsCluster) (*registration.Feed, *recorder, func()) {
	t.Helper()
	return opened(t, registration.FeedOptions{
		Connect: registration.ConnectOptions{URL: c.url()}, Stream: registration.StreamOptions{Replicas: 3, CheckEvery: time.Second},
	})
}

// info is the state of the feed's stream, once somebody knows it.
func (c *natsCluster) info(t testing.TB, js jetstream.JetStream) (info *jetstream.StreamInfo) {
	t.Helper()
	patiently(t, "the cluster knows the stream", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		found, err := js.Stream(ctx, registration.DefaultStream)
		if err == nil {
			info = found.CachedInfo()
		}
		return err == nil && info.Cluster != nil && info.Cluster.Leader != ""
	})
	return info
}

// inStep tells whether all replicas have all.
func (c *natsCluster) inStep(t testing.TB, js jetstream.JetStream) bool {
	current := 1 // the leader
	for _, replica := range c.info(t, js).Cluster.Replicas {
		if replica.Current {
			current++
		}
	}
	return current == 3
}

// A cluster that loses the server which leads the stream, again and again: what changes meanwhile is published
// and seen, and afterwards nothing is missing.
func TestCluster_GoesOnWithoutItsLeader(t *testing.T) {
	t.Parallel()
	c := newNATSCluster(t, 3)
	c.start(t, 0, 1, 2)
	js := c.admin(t)
	f, r, _ := inCluster(t, c)
	all := manyDesired(50)
	f.Replace(all)
	patiently(t, "all are published", func() bool { return f.Wait(ended(t)) == nil })
	for round := range 2 {
		info := c.info(t, js)
		if info.Config.Replicas != 3 {
			t.Fatalf("the stream has %d replicas", info.Config.Replicas)
		}
		patiently(t, "all replicas are in step", func() bool { return c.inStep(t, js) })
		leader := int(info.Cluster.Leader[1] - '0')
		c.members[leader].kill()
		b := entry(fmt.Sprint("round", round), "10.0.0.1", 80, time.Hour)
		all[registration.Subject(b)] = b
		var gone string
		for subject := range all {
			if subject != registration.Subject(b) {
				gone = subject
				break
			}
		}
		delete(all, gone)
		f.Set(desired{registration.Subject(b): b, gone: nil})
		patiently(t, "what changed without the leader is published", func() bool { return f.Wait(ended(t)) == nil })
		patiently(t, "the mirror follows without the leader", func() bool {
			there := r.all()
			_, still := there[gone]
			_, new := there[registration.Subject(b)]
			return new && !still && len(there) == len(all)
		})
		// Who leads the cluster itself may still be asked for.
		var findings []registration.Finding
		patiently(t, "it can be verified", func() bool {
			var err error
			findings, err = f.Verify(t.Context(), false)
			return err == nil
		})
		if len(findings) != 0 {
			t.Errorf("without the leader: %v", findings)
		}
		c.start(t, leader)
	}
	patiently(t, "all replicas are in step again", func() bool { return c.inStep(t, js) })
	patiently(t, "the feed is up", func() bool { return f.State().Up && f.State().Flaw == "" })
	if findings, err := f.Verify(t.Context(), false); err != nil || len(findings) != 0 {
		t.Errorf("at the end: %v, %v", findings, err)
	}
}

// A stream that is to be made with more replicas than there are servers is made when there are.
func TestCluster_TooSmallForItsReplicas(t *testing.T) {
	t.Parallel()
	c := newNATSCluster(t, 3)
	c.start(t, 0, 1)
	f, r, _ := inCluster(t, c)
	a := entry("a", "10.0.0.1", 80, time.Hour)
	f.Replace(wanted(a))
	patiently(t, "the feed says that there are too few servers", func() bool {
		return !f.State().Up && strings.Contains(f.State().Reason, "too few servers with JetStream that are up for 3 replicas")
	})
	if c := f.Counts(); c.Publishes != 0 || c.Failures > 30 {
		t.Errorf("without a stream: %+v", c)
	}
	c.start(t, 2)
	patiently(t, "the feed is up", func() bool { return f.State().Up && f.State().Flaw == "" })
	patiently(t, "it is published", func() bool { return len(r.all()) == 1 })
}

// A stream that is there with fewer replicas is used as it is, and gets the others when the cluster grows.
func TestCluster_UsesAStreamWithFewerReplicas(t *testing.T) {
	t.Parallel()
	c := newNATSCluster(t, 3)
	c.start(t, 0, 1)
	js := c.admin(t)
	patiently(t, "the stream is made", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.CreateOrUpdateStream(ctx, ccmStream())
		return err == nil
	})
	f, r, _ := inCluster(t, c)
	a := entry("a", "10.0.0.1", 80, time.Hour)
	f.Replace(wanted(a))
	patiently(t, "it is published", func() bool { return len(r.all()) == 1 })
	patiently(t, "the feed says what it lacks", func() bool {
		flaw, since := f.Flaw()
		return f.State().Up && strings.Contains(flaw, "1 of 3 replicas") && !since.IsZero()
	})
	if config := c.info(t, js).Config; !config.AllowDirect || config.Replicas != 1 {
		t.Errorf("what can be repaired is not: %+v", config)
	}
	c.start(t, 2)
	patiently(t, "nothing is lacking", func() bool { flaw, _ := f.Flaw(); return flaw == "" && f.State().Up })
	if n := c.info(t, js).Config.Replicas; n != 3 {
		t.Errorf("it has %d replicas", n)
	}
}
