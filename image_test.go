package muster_test

import (
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
)

func TestCheckDigest(t *testing.T) {
	good := "sha256:" + strings.Repeat("0a", 32)
	if err := muster.CheckDigest("digest", good); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "sha256:", good[:70], good + "0", strings.ToUpper(good), "sha512:" + good[7:], "sha256:../" + strings.Repeat("a", 61), good[7:]} {
		if err := muster.CheckDigest("digest", bad); muster.CodeOf(err) != muster.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestReport_ImagesAreNamesOrRefs(t *testing.T) {
	ref := muster.ImageRef("web", "sha256:"+strings.Repeat("ab", 32))
	if ref != "web@abababababab" || muster.ImageRef("web", "") != "web" {
		t.Fatalf("the ref is %q", ref)
	}
	for image, valid := range map[string]bool{
		"minimal": true, ref: true, "": false, "@abababababab": false, "web@": false, "web@abab": false, "web@ABABABABABAB": false, "../web@abababababab": false,
	} {
		in := muster.ReportInstancesInput{UID: "n", Images: []string{image}}
		if err := in.Validate(); (err == nil) != valid {
			t.Errorf("%q: %v", image, err)
		}
	}
}
