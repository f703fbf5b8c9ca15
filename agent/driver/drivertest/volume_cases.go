package drivertest

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/agent/driver"
)

// with returns a first generation that sees some volumes.
func (s *suite) with(disk string, command []string, volumes ...muster.VolumeMount) driver.Spec {
	spec := s.spec(disk, 1, command)
	spec.Volumes = volumes
	return spec
}

func (s *suite) volumes(t *testing.T) driver.Volumes {
	t.Helper()
	d, ok := s.driver.(driver.Volumes)
	if !ok {
		t.Fatal("the driver has no volumes")
	}
	return d
}

func (s *suite) volumeOutlives(t *testing.T) {
	first := s.with("a", s.Commands.Write("/srv/data/kept", "words"), muster.VolumeMount{Name: "data", Path: "/srv/data"})
	checkExit(t, s.exited(t, first), 0, "exited with status 0", "")
	if err := s.driver.Remove(t.Context(), first.Machine); err != nil {
		t.Fatalf("remove: %v", err)
	}
	s.driver = s.Open(t)
	if names, err := s.volumes(t).Volumes(t.Context()); err != nil || !slices.Equal(names, []string{"data"}) {
		t.Errorf("volumes after the machine was removed: %v, %v", names, err)
	}
	other := s.with("b", s.Commands.Read("/mnt/kept"), muster.VolumeMount{Name: "data", Path: "/mnt"})
	checkExit(t, s.exited(t, other), 0, "exited with status 0", "words\n")
	without := s.exited(t, s.with("c", s.Commands.Read("/mnt/kept"), muster.VolumeMount{Name: "empty", Path: "/mnt"}))
	if without.ExitCode == nil || *without.ExitCode == 0 {
		t.Errorf("another volume has the file too: %+v", without)
	}
	next := s.spec("b", 2, s.Commands.Read("/mnt/kept"))
	next.Volumes = other.Volumes
	checkExit(t, s.exited(t, next), 0, "exited with status 0", "words\n")
}

func (s *suite) volumeShared(t *testing.T) {
	data := muster.VolumeMount{Name: "data", Path: "/data"}
	holder := s.with("a", s.Commands.Idle, data)
	s.ready(t, holder)
	checkExit(t, s.exited(t, s.with("b", s.Commands.Write("/data/kept", "words"), data)), 0, "exited with status 0", "")
	checkExit(t, s.exited(t, s.with("c", s.Commands.Append("/data/kept", "more"), data)), 0, "exited with status 0", "more\n")
	if m, _ := s.find(t, holder.Machine); m.State != driver.Running {
		t.Errorf("the first one is %+v, want it to run on", m)
	}
}

func (s *suite) volumeReadOnly(t *testing.T) {
	open, shut := muster.VolumeMount{Name: "data", Path: "/data"}, muster.VolumeMount{Name: "data", Path: "/data", ReadOnly: true}
	s.exited(t, s.with("a", s.Commands.Write("/data/kept", "words"), open))
	m := s.exited(t, s.with("b", s.Commands.Write("/data/kept", "others"), shut))
	if m.ExitCode == nil || *m.ExitCode == 0 || !strings.Contains(strings.ToLower(m.Output), "read-only") {
		t.Errorf("a write to what is read-only ended as %+v", m)
	}
	checkExit(t, s.exited(t, s.with("c", s.Commands.Read("/data/kept"), shut)), 0, "exited with status 0", "words\n")
}

func (s *suite) volumeRemoved(t *testing.T) {
	spec := s.with("a", s.Commands.Write("/data/kept", "words"), muster.VolumeMount{Name: "data", Path: "/data"})
	s.exited(t, spec)
	d := s.volumes(t)
	if err := d.RemoveVolume(t.Context(), "data"); !errors.Is(err, driver.ErrInUse) {
		t.Errorf("remove while a machine that has ended uses it: %v, want ErrInUse", err)
	}
	if err := s.driver.Remove(t.Context(), spec.Machine); err != nil {
		t.Fatalf("remove: %v", err)
	}
	for range 2 { // the second time it is not there
		if err := d.RemoveVolume(t.Context(), "data"); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if names, err := d.Volumes(t.Context()); err != nil || len(names) != 0 {
		t.Errorf("volumes after the removal: %v, %v", names, err)
	}
	spec.Command = s.Commands.Read("/data/kept")
	if m := s.exited(t, spec); m.ExitCode == nil || *m.ExitCode == 0 {
		t.Errorf("the file survived the removal: %+v", m)
	}
}

func (s *suite) hostPaths(t *testing.T) {
	if got := s.volumes(t).HostPaths(); !slices.Equal(got, []string{s.HostPath}) {
		t.Errorf("allowed are %v, want %s", got, s.HostPath)
	}
	allowed := muster.VolumeMount{HostPath: s.HostPath, Path: "/host"}
	s.exited(t, s.with("a", s.Commands.Write("/host/kept", "words"), allowed))
	allowed.ReadOnly = true
	checkExit(t, s.exited(t, s.with("b", s.Commands.Read("/host/kept"), allowed)), 0, "exited with status 0", "words\n")
	spec := s.with("c", nil, muster.VolumeMount{HostPath: s.Forbidden, Path: "/host"})
	if _, err := s.driver.Launch(t.Context(), spec); err == nil || !strings.Contains(err.Error(), s.Forbidden) {
		t.Errorf("launch with a host path that is not allowed: %v, want an error that names it", err)
	}
	if m, ok := s.find(t, spec.Machine); ok {
		t.Errorf("it is listed: %+v", m)
	}
}

// removeVolumes removes all of them at the end of a case.
func (s *suite) removeVolumes(t *testing.T) {
	t.Helper()
	d, ok := s.driver.(driver.Volumes)
	if !ok {
		return
	}
	names, err := d.Volumes(t.Context())
	for _, name := range names {
		err = errors.Join(err, d.RemoveVolume(t.Context(), name))
	}
	if left, listErr := d.Volumes(t.Context()); err != nil || listErr != nil || len(left) > 0 {
		t.Errorf("volumes after all were removed: %v; %v, %v", left, err, listErr)
	}
}
