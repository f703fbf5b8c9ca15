package check

import (
	"context"
	"slices"

	"github.com/muster-cloud/muster"
)

// exec runs a command, whose exit status says it as Nagios plugins have it.
func (p *Probe) exec(ctx context.Context, c muster.Check) Outcome {
	if p.Exec == nil {
		return unknown("commands cannot be run here")
	}
	var out tail
	exit, err := p.Exec(ctx, c.Command, &out)
	switch {
	case err != nil:
		return unknown(err.Error() + "\n" + out.String())
	case exit.Failure != "" || exit.Signal != 0:
		return unknown(exit.String() + "\n" + out.String())
	}
	statuses := []muster.CheckStatus{muster.CheckOK, muster.CheckWarning, muster.CheckCritical}
	if exit.Code >= len(statuses) || exit.Code < 0 {
		return unknown(exit.String() + "\n" + out.String())
	}
	return Outcome{statuses[exit.Code], out.String()}
}

// tail keeps the end of what is written to it.
type tail struct{ kept []byte }

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	p = p[max(0, n-muster.MaxOutputBytes):]
	drop := max(0, len(t.kept)+len(p)-muster.MaxOutputBytes)
	t.kept = append(slices.Delete(t.kept, 0, drop), p...)
	return n, nil
}

func (t *tail) String() string { return string(t.kept) }
