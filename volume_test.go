package muster_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

func TestLaunchInstanceInput_Volumes(t *testing.T) {
	many := make([]muster.VolumeMount, muster.MaxVolumeMounts+1)
	for i := range many {
		many[i] = muster.VolumeMount{Name: fmt.Sprintf("v%d", i), Path: fmt.Sprintf("/v%d", i)}
	}
	data := muster.VolumeMount{Name: "data", Path: "/data"}
	for name, c := range map[string]struct {
		volumes []muster.VolumeMount
		field   string // of the error; empty: it is fine
	}{
		"none":                           {nil, ""},
		"a name":                         {[]muster.VolumeMount{data}, ""},
		"a host path":                    {[]muster.VolumeMount{{HostPath: "/srv", Path: "/srv", ReadOnly: true}}, ""},
		"one in another":                 {[]muster.VolumeMount{data, {Name: "in", Path: "/data/in"}}, ""},
		"beside what is taken":           {[]muster.VolumeMount{{Name: "data", Path: "/device"}}, ""},
		"as many as are allowed":         {many[1:], ""},
		"too many":                       {many, "volumes"},
		"neither name nor host path":     {[]muster.VolumeMount{data, {Path: "/x"}}, "volumes[1].name"},
		"both":                           {[]muster.VolumeMount{{Name: "a", HostPath: "/a", Path: "/x"}}, "volumes[0].hostPath"},
		"a name with a slash":            {[]muster.VolumeMount{{Name: "../a", Path: "/x"}}, "volumes[0].name"},
		"a hidden name":                  {[]muster.VolumeMount{{Name: ".gone-1", Path: "/x"}}, "volumes[0].name"},
		"a relative host path":           {[]muster.VolumeMount{{HostPath: "srv", Path: "/x"}}, "volumes[0].hostPath"},
		"a host path that climbs":        {[]muster.VolumeMount{{HostPath: "/srv/../etc", Path: "/x"}}, "volumes[0].hostPath"},
		"a host path with a line break":  {[]muster.VolumeMount{{HostPath: "/srv\n", Path: "/x"}}, "volumes[0].hostPath"},
		"no path":                        {[]muster.VolumeMount{{Name: "a"}}, "volumes[0].path"},
		"a relative path":                {[]muster.VolumeMount{{Name: "a", Path: "x"}}, "volumes[0].path"},
		"a path with a slash at its end": {[]muster.VolumeMount{{Name: "a", Path: "/x/"}}, "volumes[0].path"},
		"a path that climbs":             {[]muster.VolumeMount{{Name: "a", Path: "/x/../../proc"}}, "volumes[0].path"},
		"the root":                       {[]muster.VolumeMount{{Name: "a", Path: "/"}}, "volumes[0].path"},
		"/proc":                          {[]muster.VolumeMount{{Name: "a", Path: "/proc"}}, "volumes[0].path"},
		"in /sys":                        {[]muster.VolumeMount{{Name: "a", Path: "/sys/fs"}}, "volumes[0].path"},
		"in /dev":                        {[]muster.VolumeMount{{Name: "a", Path: "/dev/shm"}}, "volumes[0].path"},
		"in /run":                        {[]muster.VolumeMount{{Name: "a", Path: "/run/host/x"}}, "volumes[0].path"},
		"a path that is too long":        {[]muster.VolumeMount{{Name: "a", Path: "/" + strings.Repeat("x", muster.MaxPathBytes)}}, "volumes[0].path"},
		"a path twice":                   {[]muster.VolumeMount{data, {HostPath: "/srv", Path: "/data"}}, "volumes[1].path"},
		"a name twice":                   {[]muster.VolumeMount{data, {Name: "data", Path: "/again"}}, "volumes[1].name"},
	} {
		t.Run(name, func(t *testing.T) {
			in := muster.LaunchInstanceInput{Type: muster.Nano, Image: "minimal", Volumes: c.volumes}
			err := in.Validate()
			if c.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e, ok := errors.AsType[*muster.Error](err); !ok || e.Code != muster.Invalid || e.Field != c.field {
				t.Errorf("%v, want INVALID of %s", err, c.field)
			}
		})
	}
}

func TestNode_AllowsHostPath(t *testing.T) {
	n := &muster.Node{HostPaths: []string{"/srv/shared", "/etc/ssl"}}
	for path, want := range map[string]bool{
		"/srv/shared": true, "/srv/shared/in/it": true, "/etc/ssl/certs": true,
		"/srv": false, "/srv/sharedtoo": false, "/etc": false, "/": false,
	} {
		if got := n.AllowsHostPath(path); got != want {
			t.Errorf("%s: allowed is %t", path, got)
		}
	}
	if all := (&muster.Node{HostPaths: []string{"/"}}); !all.AllowsHostPath("/etc") {
		t.Error("all of the host is allowed, but /etc is not")
	}
}
