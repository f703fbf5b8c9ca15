package driver_test

import (
	"errors"
	"testing"

	"github.com/muster-cloud/muster/agent/driver"
)

func TestSpec_Predecessor(t *testing.T) {
	machine := func(name, disk string, generation int64, state driver.State) driver.Status {
		return driver.Status{Spec: driver.Spec{Machine: name, Disk: disk, Generation: generation}, State: state}
	}
	spec := driver.Spec{Machine: "m3", Disk: "d", Generation: 3}
	for name, c := range map[string]struct {
		machines []driver.Status
		want     string
		exists   bool
	}{
		"nothing there":               {nil, "", false},
		"another disk":                {[]driver.Status{machine("x", "e", 9, driver.Running)}, "", false},
		"an older one that has ended": {[]driver.Status{machine("m2", "d", 2, driver.Exited)}, "m2", false},
		"the newest of two":           {[]driver.Status{machine("m2", "d", 2, driver.Exited), machine("m1", "d", 1, driver.Exited)}, "m2", false},
		"an older one that runs":      {[]driver.Status{machine("m2", "d", 2, driver.Running)}, "", true},
		"one that is being launched":  {[]driver.Status{machine("m2", "d", 2, driver.Preparing)}, "", true},
		"a newer one that has ended":  {[]driver.Status{machine("m4", "d", 4, driver.Exited)}, "", true},
		"the machine itself, ended":   {[]driver.Status{machine("m3", "d", 3, driver.Exited)}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := spec.Predecessor(c.machines)
			if errors.Is(err, driver.ErrExists) != c.exists || !c.exists && err != nil {
				t.Errorf("error %v, want ErrExists: %v", err, c.exists)
			}
			if (got != nil) != (c.want != "") || got != nil && got.Spec.Machine != c.want {
				t.Errorf("predecessor %+v, want %q", got, c.want)
			}
		})
	}
}
