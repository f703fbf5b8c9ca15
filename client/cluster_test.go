package client_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func at(hour int) *time.Time {
	t := time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC)
	return &t
}

func number(n int) *int                   { return &n }
func span(d time.Duration) *time.Duration { return &d }
func answers(body string) func(int, request) (int, string) {
	return func(int, request) (int, string) { return 200, body }
}

func TestClient_ReadsTheClustersHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := serve(t, &scripted{t: t, answer: answers(`{"data":{"clusterHealth":{"status":"DEGRADED","revision":7,
			"nodes":[{"status":"UNHEALTHY","count":3}],"instances":[],
			"conditions":[{"name":"BRAKE","status":"HOLDS","reason":"3 of 5","since":"2026-01-02T03:00:00Z","until":"2026-01-02T04:00:00Z"}],
			"brake":{"state":"HOLDS","reason":"3 of 5","since":"2026-01-02T03:00:00Z","releasesAt":"2026-01-02T04:00:00Z"}}}}`)}, client.Options{})
		got, err := api.ClusterHealth(t.Context())
		want := &client.ClusterHealth{
			Status: muster.ClusterDegraded, Revision: 7,
			Nodes: []client.StatusCount{{Status: "UNHEALTHY", Count: 3}}, Instances: []client.StatusCount{},
			Conditions: []client.Condition{{Name: muster.Brake, Status: muster.Holds, Reason: "3 of 5", Since: *at(3), Until: at(4)}},
			Brake:      client.Brake{State: muster.Holds, Reason: "3 of 5", Since: at(3), ReleasesAt: at(4)},
		}
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
	})
}

func TestClient_ReleasesTheBrake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{t: t, answer: answers(`{"data":{"releaseBrake":{"brake":{"state":"CLEAR","reason":"fire","since":"2026-01-02T03:00:00Z","releasesAt":null}}}}`)}
		got, err := serve(t, server, client.Options{}).ReleaseBrake(t.Context(), "fire")
		if diff := cmp.Diff(&client.Brake{State: muster.Clear, Reason: "fire", Since: at(3)}, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
		if diff := cmp.Diff(map[string]any{"reason": "fire"}, server.asked[0].Variables); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClient_ForgetsANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &scripted{t: t, answer: answers(`{"data":{"forgetNode":{"node":{"id":"a","uid":"n-1","status":"PRUNED"}}}}`)}
		got, err := serve(t, server, client.Options{}).ForgetNode(t.Context(), "a")
		if err != nil || got.UID != "n-1" || got.Status != muster.Pruned {
			t.Errorf("%+v, %v", got, err)
		}
		if diff := cmp.Diff(map[string]any{"id": "a"}, server.asked[0].Variables); diff != "" {
			t.Error(diff)
		}
	})
}

func TestClient_ReadsWhyANodeIsUnhealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := serve(t, &scripted{t: t, answer: answers(`{"data":{"node":{"id":"a","status":"UNHEALTHY","statusSince":"2026-01-02T03:00:00Z","unhealthyBecause":
			{"reason":"no beat for 30s","lastBeat":"2026-01-02T02:00:00Z","silence":"1m0.5s","missedBeats":6,"clockSkew":"-3s","exitCode":1}}}}`)}, client.Options{})
		got, err := api.Node(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		want := &client.Evidence{
			Reason: "no beat for 30s", LastBeat: at(2), Silence: span(60500 * time.Millisecond), MissedBeats: number(6),
			ClockSkew: span(-3 * time.Second), ExitCode: number(1),
		}
		if diff := cmp.Diff(want, got.UnhealthyBecause); diff != "" || !got.StatusSince.Equal(*at(3)) {
			t.Errorf("since %s: %s", got.StatusSince, diff)
		}
	})
}

func TestWatch_TellsOfTheClustersConditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := newStage(t, opened(func(p *peer) {
			p.say(`{"id":"1","type":"next","payload":{"data":{"healthChanges":{"type":"CHANGE","cursor":"c1","revision":1,"at":null,"kind":"CLUSTER","objectId":"BRAKE",
				"previousStatus":"CLEAR","status":"HOLDS","condition":{"name":"BRAKE","status":"HOLDS","reason":"3 of 5","since":"2026-01-02T03:00:00Z","until":null}}}}}`)
			p.drain()
		}))
		err := c.WatchHealth(t.Context(), nil, client.WatchOptions{}, func(e client.Event) error {
			want := &client.Condition{Name: muster.Brake, Status: muster.Holds, Reason: "3 of 5", Since: *at(3)}
			if diff := cmp.Diff(want, e.Condition); diff != "" || e.ObjectID != "BRAKE" || e.Kind != muster.KindCluster {
				t.Errorf("%+v: %s", e, diff)
			}
			return errEnough
		})
		if !errors.Is(err, errEnough) {
			t.Error(err)
		}
	})
}
