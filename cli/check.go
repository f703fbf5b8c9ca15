package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-cloud/muster"
)

// readCheck reads the value of --check, such as `kind=http path=/healthz interval=5s`.
func readCheck(text string) (muster.Check, error) {
	var c muster.Check
	err := readClause("--check", text, []clauseKey{
		{"kind", wordKey(&c.Kind, muster.HTTPCheck, muster.TCPCheck, muster.ExecCheck, muster.TTLCheck)},
		{"name", textKey(&c.Name)},
		{"command", func(value string) (err error) {
			if value == bareValue {
				return usageError("the value is missing")
			}
			c.Command, err = splitWords(value, " \t\n")
			return err
		}},
		{"port", numberKey(&c.Port)},
		{"path", textKey(&c.Path)},
		{"tls", switchKey(&c.TLS)},
		{"skip-verify", switchKey(&c.SkipVerify)},
		{"status", numberKey(&c.Status)},
		{"body", textKey(&c.Body)},
		{"interval", durationKey(&c.Interval)},
		{"timeout", durationKey(&c.Timeout)},
		{"tries", numberKey(&c.Tries)},
		{"pause", durationKey(&c.Pause)},
		{"initial-delay", durationKey(&c.InitialDelay)},
		{"fail-after", numberKey(&c.FailAfter)},
		{"pass-after", numberKey(&c.PassAfter)},
	}, nil)
	switch {
	case err != nil:
		return c, err
	case c.Kind == "":
		return c, usageError("--check %s: kind is missing; add kind=http, kind=tcp, kind=exec or kind=ttl", quote(text))
	case c.Name == "":
		c.Name = strings.ToLower(string(c.Kind))
	}
	return c, nil
}

// readRegistration reads the value of --register, such as `cluster=main,protocol=http`.
func readRegistration(text string) (muster.RegistrationSpec, error) {
	r := muster.RegistrationSpec{Annotations: muster.Map{}}
	port, priority := 0, 0
	err := readClause("--register", text, []clauseKey{
		{"cluster", textKey(&r.Cluster)},
		{"protocol", textKey(&r.Protocol)},
		{"service", textKey(&r.Service)},
		{"address", textKey(&r.Address)},
		{"port", numberKey(&port)},
		{"priority", numberKey(&priority)},
		{"ttl", func(value string) error {
			r.TTL = new(time.Duration)
			if strings.EqualFold(value, "never") {
				*r.TTL = muster.RegistrationTTLForever
				return nil
			}
			return durationKey(r.TTL)(value)
		}},
	}, func(key, value string) bool {
		name, ok := strings.CutPrefix(key, "annotation.")
		if ok && name != "" {
			r.Annotations[name] = value
		}
		return ok && name != ""
	})
	switch {
	case err != nil:
		return r, err
	case r.Cluster == "" || r.Protocol == "":
		return r, usageError("--register %s: cluster and protocol have to be there; write such as cluster=main,protocol=http", quote(text))
	}
	if port != 0 {
		r.Port = &port
	}
	if priority != 0 {
		r.Priority = &priority
	}
	return r, nil
}

const checkLong = `Say what a service found of itself, for its check of the kind TTL. Unless it is said
again before the check's interval has passed, the check is CRITICAL. STATUS is ok,
warning, critical or unknown, or the number that Nagios plugins exit with for it.

Who says it needs a key that may: one of the role REGISTRAR can say this and nothing else.`

const checkExamples = `  muster service check svc-1 heartbeat ok
  muster service check svc-1 backup warning --message 'the last one is 26 h old'
  check_disk -w 10% -c 5% /; muster service check svc-1 disk $?`

func (a *app) serviceCheckCommand() *cobra.Command {
	var message string
	c := &cobra.Command{
		Use: "check SERVICE CHECK STATUS", Short: "Say what a service found of itself, for a check of the kind TTL", Long: checkLong, Example: checkExamples,
		Args: exactly(3, "a service's id, a check's name, and a status"),
		RunE: func(c *cobra.Command, args []string) error {
			status, err := checkStatus(args[2])
			if err != nil {
				return err
			}
			api, err := a.connect()
			if err != nil {
				return err
			}
			_, err = api.ReportCheck(c.Context(), muster.ReportCheckInput{
				ServiceID: muster.ServiceID(args[0]), Check: args[1], Status: status, Output: message,
			})
			return err
		},
	}
	c.Flags().StringVarP(&message, "message", "m", "", "`TEXT` that says more")
	return c
}

// checkStatus reads a status, or the number that stands for it.
func checkStatus(word string) (muster.CheckStatus, error) {
	statuses := []muster.CheckStatus{muster.CheckOK, muster.CheckWarning, muster.CheckCritical, muster.CheckUnknown}
	if len(word) == 1 && word[0] >= '0' && int(word[0]-'0') < len(statuses) {
		return statuses[word[0]-'0'], nil
	}
	status, ok := oneWord(word, statuses)
	if !ok {
		return "", usageError("%s is no status; use %s, or 0 to 3", quote(word), listed(lowered(statuses), "or"))
	}
	return status, nil
}
