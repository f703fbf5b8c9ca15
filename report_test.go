package muster_test

import (
	"math"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

// Numbers that an agent reports are added up and counted on: none may be absurd.
func TestReport_NumbersAreInBounds(t *testing.T) {
	for field, spoil := range map[string]func(m *muster.InstanceReportInput, n int64){
		"generation": func(m *muster.InstanceReportInput, n int64) { m.Generation = n },
		"cpuLimit":   func(m *muster.InstanceReportInput, n int64) { m.CPULimit = int(n) },
		"memLimitMb": func(m *muster.InstanceReportInput, n int64) { m.MemLimitMB = int(n) },
	} {
		for n, valid := range map[int64]bool{0: true, 1024: true, -1: false, math.MinInt64: false, math.MaxInt64: false} {
			m := muster.InstanceReportInput{Machine: "m", ID: "i-1"}
			spoil(&m, n)
			in := muster.ReportInstancesInput{UID: "n", Instances: []muster.InstanceReportInput{m}}
			err := in.Validate()
			if (err == nil) != valid || err != nil && !strings.HasPrefix(err.Error(), "instances."+field+": ") {
				t.Errorf("%s %d: %v", field, n, err)
			}
		}
	}
}
