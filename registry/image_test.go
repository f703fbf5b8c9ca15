package registry_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/muster-cloud/muster"
)

func digest(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

func (w *world) put(t testing.TB, name, digest string) *muster.Image {
	t.Helper()
	i, _, err := w.PutImage(ctx, muster.Image{Name: name, Digest: digest, Size: 1000, UnpackedSize: 4000, Entries: 3, Source: "a test"})
	if err != nil {
		t.Fatalf("put %s: %v", name, err)
	}
	return i
}

func TestImages_AreKept(t *testing.T) {
	dir := t.TempDir()
	w := open(t, setup{dir: dir})
	first := w.put(t, "web", digest("a"))
	if again := w.put(t, "web", digest("a")); again.Revision != first.Revision {
		t.Errorf("the same again is revision %d, was %d", again.Revision, first.Revision)
	}
	w.put(t, "base", digest("b"))
	newer := w.put(t, "web", digest("c"))
	for name, in := range map[string]muster.Image{"a name": {Name: "../web", Digest: digest("a")}, "a digest": {Name: "web", Digest: "sha256:abc"}} {
		if _, _, err := w.PutImage(ctx, in); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%s that is none: %v", name, err)
		}
	}
	w.stop()
	w = open(t, setup{dir: dir})
	if got := w.Image("web"); got == nil || *got != *newer {
		t.Errorf("after a restart it is %+v, want %+v", got, newer)
	}
	one := 1
	page, err := w.Images(muster.PageInput{First: &one})
	if err != nil || len(page.Edges) != 1 || page.Edges[0].Node.Name != "base" || page.TotalCount() != 2 || !page.PageInfo.HasNextPage {
		t.Fatalf("the first page is %+v, %v", page, err)
	}
	page, err = w.Images(muster.PageInput{First: &one, After: page.PageInfo.EndCursor})
	if err != nil || len(page.Edges) != 1 || page.Edges[0].Node.Name != "web" || page.PageInfo.HasNextPage {
		t.Fatalf("the second page is %+v, %v", page, err)
	}
	if _, used, _, err := w.RemoveImage(ctx, "base"); err != nil || used != 0 {
		t.Errorf("remove: %d use it, %v", used, err)
	}
	_, _, _, err = w.RemoveImage(ctx, "base")
	wantCode(t, err, muster.NotFound)
	id := "image/web"
	changes, err := w.Changes(ctx, nil, &id, nil)
	if err != nil || len(changes.Edges) != 2 || changes.Edges[1].Node.Reason != "imported anew" || changes.Edges[1].Node.PreviousRevision != first.Revision {
		t.Errorf("its changes are %+v, %v", changes, err)
	}
}

func TestImages_OfOneNameAtOnce(t *testing.T) {
	w := open(t, setup{})
	var group sync.WaitGroup
	for k := range 16 {
		group.Go(func() { w.put(t, "web", digest(fmt.Sprintf("%x", k))) })
	}
	group.Wait()
	id := "image/web"
	changes, err := w.Changes(ctx, nil, &id, nil)
	if err != nil || len(changes.Edges) != 16 {
		t.Fatalf("%d changes, %v", len(changes.Edges), err)
	}
	if last := w.Image("web"); last.Revision != changes.Edges[15].Node.Revision {
		t.Errorf("it is that of revision %d, the last change is %d", last.Revision, changes.Edges[15].Node.Revision)
	}
}

func TestImages_AnInstanceKeepsItsVersion(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 8, 8192)
	in := launch(muster.Nano)
	in.Image = "web"
	_, _, err := w.LaunchInstance(ctx, in)
	wantCode(t, err, muster.Invalid)
	w.put(t, "web", digest("a"))
	old := w.launch(t, in)
	w.put(t, "web", digest("b"))
	next := w.launch(t, in)
	own := w.launch(t, launch(muster.Nano))
	if old.ImageDigest != digest("a") || next.ImageDigest != digest("b") || own.ImageDigest != "" {
		t.Errorf("they start from %q, %q and %q", old.ImageDigest, next.ImageDigest, own.ImageDigest)
	}
	if _, used, _, err := w.RemoveImage(ctx, "web"); err != nil || used != 1 {
		t.Errorf("of the newest version it is said that %d use it, %v", used, err)
	}
	_, _, err = w.LaunchInstance(ctx, in)
	wantCode(t, err, muster.Invalid)
	again, _, err := w.RestartInstance(ctx, old.ID)
	if err != nil || again.ImageDigest != digest("a") {
		t.Errorf("restarted it starts from %q, %v", again.ImageDigest, err)
	}
	assigned, err := w.Assignments(t.Context(), n.UID, n.Incarnation)
	if err != nil || len(assigned.Instances) != 3 || assigned.Instances[0].ImageDigest != digest("a") {
		t.Errorf("assigned is %+v, %v", assigned, err)
	}
	// What is needed is what something was launched from, until that is gone.
	if need := w.ImageDigests(); len(need) != 2 || !need[digest("a")] || !need[digest("b")] {
		t.Errorf("needed is %v", need)
	}
	if _, _, err := w.TerminateInstance(ctx, old.ID); err != nil {
		t.Fatal(err)
	}
	if need := w.ImageDigests(); len(need) != 2 {
		t.Errorf("while it is terminating needed is %v", need)
	}
	w.report(t, n, 1, map[muster.InstanceID]muster.InstanceStatus{next.ID: muster.Running, own.ID: muster.Running})
	if need := w.ImageDigests(); len(need) != 1 || !need[digest("b")] {
		t.Errorf("once it is terminated needed is %v", need)
	}
}

func TestImages_AnImportPlacesThoseThatWaitForIt(t *testing.T) {
	w := open(t, setup{})
	w.join(t, "n1", 8, 8192)
	in := launch(muster.Nano)
	in.Image, in.Queue = "web", true
	waits := w.launch(t, in)
	if waits.Status != muster.Pending || waits.ImageDigest != "" {
		t.Fatalf("it is %+v", waits)
	}
	w.put(t, "web", digest("a"))
	if got := w.Instance(waits.ID); got.Status != muster.Provisioning || got.ImageDigest != digest("a") {
		t.Errorf("after the import it is %s of %q", got.Status, got.ImageDigest)
	}
}

func TestImages_TheReasonOfProvisioningIsShown(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 8, 8192)
	w.put(t, "web", digest("a"))
	in := launch(muster.Nano)
	in.Image = "web"
	i := w.launch(t, in)
	tell := func(sequence int64, status muster.InstanceStatus, reason string) {
		t.Helper()
		_, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
			UID: n.UID, Incarnation: n.Incarnation, Sequence: sequence, Epoch: w.ServerInfo().Epoch, AppliedRevision: w.DesiredRevision(n),
			Images: []string{"minimal", muster.ImageRef("web", digest("a"))},
			Instances: []muster.InstanceReportInput{{
				Machine: i.Machine, Epoch: w.ServerInfo().Epoch, ID: i.ID, Generation: 1, Status: status, Reason: reason, ImageDigest: digest("a"),
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	tell(1, muster.Provisioning, "pulling image web")
	if got := w.Instance(i.ID); got.Status != muster.Provisioning || got.StatusReason != "pulling image web" {
		t.Errorf("it is %s: %s", got.Status, got.StatusReason)
	}
	tell(2, muster.Running, "")
	if got := w.Instance(i.ID); got.Status != muster.Running || got.StatusReason != "" {
		t.Errorf("it is %s: %s", got.Status, got.StatusReason)
	}
	if !w.Node("n1").HasImage("other name", digest("a")) || w.Node("n1").HasImage("web", "") {
		t.Errorf("the node has %v", w.Node("n1").Images)
	}
}

// A machine that another history launched keeps what its disk stands on.
func TestImages_AnAdoptedInstanceKeepsItsImage(t *testing.T) {
	w := open(t, setup{})
	n := w.join(t, "n1", 8, 8192)
	_, _, err := w.ReportInstances(ctx, muster.ReportInstancesInput{
		UID: n.UID, Incarnation: n.Incarnation, Sequence: 1, Epoch: w.ServerInfo().Epoch,
		Instances: []muster.InstanceReportInput{{
			Machine: "other-i-7-1", Epoch: "another", ID: "i-7", Generation: 1, Status: muster.Running,
			BaseImage: "web", ImageDigest: digest("a"), CPULimit: 25, MemLimitMB: 128,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	i, _, err := w.AdoptInstance(ctx, "i-1")
	if err != nil || i.ImageDigest != digest("a") {
		t.Errorf("adopted it is %+v, %v", i, err)
	}
}
