package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/client"
)

func (a *app) serviceCommand() *cobra.Command {
	return group("service", "Services: applications in instances",
		a.serviceDeployCommand(), a.serviceRegisterCommand(), a.serviceListCommand(), a.serviceShowCommand(),
		a.serviceVerbCommand(serviceVerb{
			use: "start", short: "Start a service that has ended or was stopped", goal: serviceHealthy,
			call: (*client.Client).StartService,
		}),
		a.serviceVerbCommand(serviceVerb{
			use: "stop", short: "Stop a service; it keeps its id, its files and its log", goal: serviceStopped,
			call: (*client.Client).StopService,
		}),
		a.serviceVerbCommand(serviceVerb{
			use: "restart", short: "Stop a service and start it again", goal: serviceHealthy,
			call: (*client.Client).RestartService,
		}),
		a.serviceVerbCommand(serviceVerb{
			use: "remove", short: "End a service for good, and the instance that was launched for it", goal: serviceRemoved,
			call: (*client.Client).RemoveService,
		}),
		a.logsCommand("SERVICE"), a.serviceCheckCommand(),
	)
}

// serviceVerb is a command that asks for one change of one service.
type serviceVerb struct {
	use, short string
	goal       serviceGoal
	call       func(*client.Client, context.Context, muster.ServiceID) (*client.Service, error)
}

const aService = "a service's id, such as svc-1"

func (a *app) serviceVerbCommand(v serviceVerb) *cobra.Command {
	var w waitFlags
	c := &cobra.Command{
		Use: v.use + " SERVICE", Short: v.short, Args: exactly(1, aService),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			service, err := v.call(api, c.Context(), muster.ServiceID(args[0]))
			if err != nil {
				return err
			}
			return a.finishService(c.Context(), api, service, w.service(v.goal))
		},
	}
	w.declare(c.Flags())
	return c
}

func (a *app) serviceListCommand() *cobra.Command {
	which, watch := serviceNarrowing(), false
	c := &cobra.Command{
		Use: "list", Short: "List services", Args: exactly(0, "no arguments"),
		Long:    "List services, oldest first; removed ones with --status REMOVED, for an hour." + listLong,
		Example: "  muster service list --health UNHEALTHY\n  muster service list --filter node=web-1,status=RUNNING --watch",
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := which.filter()
			if err != nil {
				return err
			}
			if watch {
				return a.followServices(c.Context(), filter)
			}
			return a.listServices(c.Context(), filter)
		},
	}
	which.declare(c.Flags())
	watchFlag(c.Flags(), &watch)
	return c
}

func (a *app) listServices(ctx context.Context, filter *muster.ServiceFilter) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	services, err := collect(c.AllServices(ctx, filter))
	if err != nil {
		return err
	}
	return a.write(services, func(w io.Writer) { a.printServices(w, services) })
}

func (a *app) followServices(ctx context.Context, filter *muster.ServiceFilter) error {
	return a.follow(ctx, following{
		table: a.serviceTable().reserve(map[int]string{2: string(muster.ServiceRemoved) + isGone, 3: string(muster.HealthBad)}),
		watch: func(c *client.Client, o client.WatchOptions, each func(client.Event) error) error {
			return c.WatchServices(ctx, filter, o, each)
		},
		row: func(t *table, e client.Event) {
			if e.Service != nil {
				addService(t, e.Service, gone(e))
			}
		},
	})
}

func (a *app) printServices(w io.Writer, services []*client.Service) {
	t := a.serviceTable()
	for _, s := range services {
		addService(t, s, "")
	}
	t.print(w)
}

func (a *app) serviceTable() *table {
	t := &table{paint: a.painter(), whole: []int{0, 2, 3, 4, 6}}
	t.add("ID", "NAME", "STATUS", "HEALTH", "INSTANCE", "NODE", "PUBLISHED", "AGE", "REASON")
	return t
}

// addService adds a service's row; note follows its status.
func addService(t *table, s *client.Service, note string) {
	t.add(
		string(s.ID), s.Name, string(s.Status)+note, string(s.Health), string(s.InstanceID), hostOf(s), publishedAt(s),
		ago(time.Now(), s.CreatedAt), serviceReason(s),
	)
}

func hostOf(s *client.Service) string {
	if s.Node == nil {
		return ""
	}
	return string(s.Node.ID)
}

// publishedAt is where a service is reached from outside; empty: nowhere.
func publishedAt(s *client.Service) string {
	if s.Publish == nil || s.Publish.Port == 0 || s.Node == nil || s.Status == muster.ServiceRemoved {
		return ""
	}
	at := net.JoinHostPort(s.Node.Addr, strconv.Itoa(s.Publish.Port))
	if s.Publish.Protocol != muster.TCP {
		at += "/" + strings.ToLower(string(s.Publish.Protocol))
	}
	return at
}

// serviceReason is why a service is as it is.
func serviceReason(s *client.Service) string {
	if s.UnhealthyBecause != nil && s.UnhealthyBecause.Reason != "" {
		return s.UnhealthyBecause.Reason
	}
	return s.StatusReason
}

// serviceState is a service's status, and its health where that is about its status.
func serviceState(s *client.Service) string {
	if s.Status == muster.ServiceRunning {
		return string(s.Status) + " and " + string(s.Health)
	}
	return string(s.Status)
}

func (a *app) serviceShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show SERVICE", Short: "Show a service, and what its checks say", Args: exactly(1, aService),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := a.connect()
			if err != nil {
				return err
			}
			service, err := api.Service(c.Context(), muster.ServiceID(args[0]))
			if err != nil {
				return err
			}
			return a.write(service, func(w io.Writer) { a.printService(w, service) })
		},
	}
}

func (a *app) printService(w io.Writer, s *client.Service) {
	shown := []string{"id", string(s.ID), "name", s.Name, "status", string(s.Status), "reason", s.StatusReason, "health", string(s.Health)}
	shown = append(shown, evidence(s.UnhealthyBecause, s.StatusReason)...)
	shown = append(
		shown,
		"desired", string(s.Desired), "instance", instanceOf(s), "node", hostOf(s), "runs by", announcedText(s.Announced),
		"port", positive(s.Port), "published at", publishedAt(s),
		"files from", s.DeployURL, "sha256", s.SHA256, "command", words(s.Command), "environment", strings.Join(s.EnvNames, ", "),
		"user", s.User, "directory", s.Dir, "restart", restartText(s), "restarts", strconv.Itoa(s.Restarts),
		"generation", strconv.FormatInt(s.Generation, 10), "pid", number(s.PID), "exit code", number(s.ExitCode),
		"registers", registrationTexts(s.RegisterWhenStable), "stable after", span(s.StableFor), "drains for", span(s.DrainFor), "drains until", moment(s.DrainUntil),
		"created", s.CreatedAt.Format(time.RFC3339), "started", moment(s.StartedAt),
		"ended", moment(s.EndedAt), "removed", moment(s.RemovedAt), "revision", strconv.FormatInt(s.Revision, 10),
	)
	fields(w, a.painter(), shown...)
	a.printChecks(w, s)
}

func instanceOf(s *client.Service) string {
	if s.OwnsInstance {
		return string(s.InstanceID) + " (launched for it, and goes with it)"
	}
	return string(s.InstanceID)
}

func announcedText(announced bool) string {
	if announced {
		return "somebody else: it was announced, and is only checked"
	}
	return ""
}

// positive is a number for people, empty when there is none.
func positive(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func restartText(s *client.Service) string {
	if s.Announced {
		return ""
	}
	r := s.Restart
	when := lowered([]muster.RestartWhen{r.When})[0]
	switch {
	case r.When == muster.RestartNever:
		return when
	case r.Attempts < 0:
		return fmt.Sprintf("%s, without limit", when)
	}
	return fmt.Sprintf("%s, %s in %s", when, counted(r.Attempts, "time"), span(r.Window))
}

// printChecks prints the checks and what they found, of an output its first line.
func (a *app) printChecks(w io.Writer, s *client.Service) {
	if len(s.Checks) == 0 {
		return
	}
	found := map[string]muster.CheckResult{}
	for _, r := range s.CheckResults {
		found[r.Name] = r
	}
	_, _ = fmt.Fprintln(w)
	t := &table{paint: a.painter(), whole: []int{0, 1}}
	t.add("CHECK", "STATUS", "SINCE", "WHAT", "EVERY", "OUTPUT")
	for _, c := range s.Checks {
		r, since := found[c.Name], ""
		if r.Status == "" {
			r.Status = muster.CheckUnknown
		}
		if r.Since != nil {
			since = ago(time.Now(), *r.Since)
		}
		t.add(c.Name, string(r.Status), since, checkText(c, s.Port), span(c.Interval), firstLine(r.Output))
	}
	t.print(w)
}

// checkText is what a check looks at.
func checkText(c muster.Check, servicePort int) string {
	port := c.Port
	if port == 0 {
		port = servicePort
	}
	switch c.Kind {
	case muster.HTTPCheck:
		scheme := "http"
		if c.TLS {
			scheme = "https"
		}
		return fmt.Sprintf("%s :%d%s", scheme, port, c.Path)
	case muster.TCPCheck:
		return fmt.Sprintf("tcp :%d", port)
	case muster.ExecCheck:
		return "exec " + words(c.Command)
	}
	return strings.ToLower(string(c.Kind))
}

// firstLine is the first line of a text that has something in it: with plugins the one that says it all.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimLeft(text, " \t\r\n"), "\n")
	return strings.TrimRight(line, " \t\r")
}

func registrationTexts(specs []muster.RegistrationSpec) string {
	texts := make([]string, len(specs))
	for i, r := range specs {
		texts[i] = registrationText(r)
	}
	return strings.Join(texts, ", ")
}

func registrationText(r muster.RegistrationSpec) string {
	text := r.Cluster + "/" + r.Protocol
	if r.Service != "" {
		text += "/" + r.Service
	}
	if r.Address != "" {
		text += " at " + r.Address
	}
	if r.Port != nil {
		text += " port " + strconv.Itoa(*r.Port)
	}
	if len(r.Annotations) > 0 {
		text += " " + pairs(r.Annotations)
	}
	return text
}
