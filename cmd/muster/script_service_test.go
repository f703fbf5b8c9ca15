package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

// runServe reports a service as an agent would, in an instance that runs:
// serve SERVICE STATUS HEALTH [REASON [CHECK CHECK-STATUS OUTPUT]], or serve SERVICE GONE.
func runServe() {
	if err := serve(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, args []string) error {
	c, err := client.New(client.Options{URL: os.Getenv("MUSTER_SERVER"), Key: ownKey()})
	if err != nil {
		return err
	}
	s, err := c.Service(ctx, muster.ServiceID(args[0]))
	if err != nil {
		return err
	}
	i, err := c.Instance(ctx, s.InstanceID)
	if err != nil {
		return err
	}
	n, err := c.Node(ctx, string(i.Node.UID))
	if err != nil {
		return err
	}
	info, err := c.ServerInfo(ctx)
	if err != nil {
		return err
	}
	machine := muster.InstanceReportInput{
		Machine: i.Machine, Epoch: info.Epoch, ID: i.ID, Generation: i.Generation, Status: muster.Running, Addr: i.Addr,
	}
	if args[1] != "GONE" {
		machine.Services = append(machine.Services, served(s, args))
	}
	_, err = c.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: n.UID, Incarnation: n.Incarnation, Sequence: time.Now().UnixNano(), Epoch: info.Epoch, AppliedRevision: n.DesiredRevision,
		Instances: []muster.InstanceReportInput{machine},
	})
	return err
}

func served(s *client.Service, args []string) muster.ServiceReportInput {
	out := muster.ServiceReportInput{
		ID: s.ID, Generation: s.Generation, Status: muster.ServiceStatus(args[1]), Health: muster.ServiceHealth(args[2]), Checks: []muster.CheckResult{},
	}
	if len(args) > 3 {
		out.Reason, out.HealthReason = args[3], args[3]
	}
	if len(args) > 6 {
		out.Checks = append(out.Checks, muster.CheckResult{Name: args[4], Status: muster.CheckStatus(args[5]), Output: args[6], At: new(time.Now())})
	}
	return out
}
