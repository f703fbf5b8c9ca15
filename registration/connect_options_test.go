package registration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registration"
)

// What can never connect is refused before anything is tried, by the name of the setting.
func TestConnectOptions_Refuse(t *testing.T) {
	creds := filepath.Join(t.TempDir(), "user.creds")
	if err := os.WriteFile(creds, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    registration.ConnectOptions
		says string // empty: nothing
	}{
		"nothing":            {registration.ConnectOptions{}, ""},
		"hosts":              {registration.ConnectOptions{URL: "10.0.0.1:4222, nats.example"}, ""},
		"each scheme":        {registration.ConnectOptions{URL: "nats://a,tls://b,ws://c,wss://d", Credentials: creds}, ""},
		"another scheme":     {registration.ConnectOptions{URL: "nats://a,http://b"}, `nats-url: "http" is no scheme of NATS`},
		"a file that is not": {registration.ConnectOptions{Credentials: creds + "x"}, "nats-creds: open " + creds + "x: no such file"},
	} {
		err := c.o.Validate()
		if (err == nil) != (c.says == "") || err != nil && (muster.CodeOf(err) != muster.Invalid || !strings.HasPrefix(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}
