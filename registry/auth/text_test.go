package auth_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/auth"
)

// fixed is a secret that tests know.
func fixed() auth.Secret {
	var s auth.Secret
	for i := range s {
		s[i] = byte(i * 7)
	}
	return s
}

// The text is a format that others keep: it must not change.
func TestKey_Text(t *testing.T) {
	text := auth.Key{ID: "k-1", Secret: fixed()}.Text()
	if want := "muster_k-1_00p7tmjamTiakpk15kmEonvL8LpKP3q5j7ozTdh3ynD2QazJ4"; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	if zero := (auth.Key{ID: "k-1"}).Text(); len(zero) != len(text) {
		t.Errorf("the length depends on the secret: %s", zero)
	}
}

func TestKey_RoundTrip(t *testing.T) {
	for _, id := range []string{"k-1", "k-9007199254740993", "a", strings.Repeat("a", 32)} {
		k := auth.Key{ID: id, Secret: auth.NewSecret()}
		got, err := auth.ParseKey("\t" + k.Text() + "\n")
		if err != nil || got != k {
			t.Errorf("%s came back as %s: %v", id, got.ID, err)
		}
	}
}

func TestParseKey_Refuses(t *testing.T) {
	good := auth.Key{ID: "k-1", Secret: fixed()}.Text()
	join := auth.JoinToken{ID: "t-1", Secret: fixed()}.Text()
	for name, c := range map[string]struct{ text, want string }{
		"nothing":           {"", "not an access key"},
		"another's key":     {"ghp_0123456789", "not an access key"},
		"a join token":      {join, "this is a join token"},
		"one digit wrong":   {strings.Replace(good, "p7tm", "p7tn", 1), "typo"},
		"capitals":          {strings.ToUpper(good[7:]), "not an access key"},
		"another id":        {strings.Replace(good, "k-1", "k-2", 1), "typo"},
		"cut":               {good[:len(good)-1], "typo"},
		"only the prefix":   {"muster_", "typo"},
		"twice":             {good + good, "typo"},
		"long":              {"muster_" + strings.Repeat("x", 1000), "not an access key"},
		"a space inside":    {good[:20] + " " + good[20:], "typo"},
		"sealed, no secret": {sealed("muster_k-1_"), "typo"},
		"sealed, no id":     {sealed("muster__" + good[11:54]), "typo"},
		"sealed, large":     {sealed("muster_k-1_" + strings.Repeat("Z", 43)), "typo"},
		"sealed, odd id":    {sealed("muster_K 1_" + good[11:54]), "typo"},
	} {
		_, err := auth.ParseKey(c.text)
		if muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if len(c.text) > 12 && strings.Contains(fmt.Sprintf("%v %+v", err, err), c.text[11:]) {
			t.Errorf("%s: the error quotes what was given: %v", name, err)
		}
	}
}

// sealed ends a text with the checksum that fits, found as an outsider would.
func sealed(body string) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	n := crc(body)
	var check [6]byte
	for i := range check {
		check[5-i] = digits[n%62]
		n /= 62
	}
	return body + string(check[:])
}

func crc(text string) uint32 {
	sum := ^uint32(0)
	for _, b := range []byte(text) {
		sum ^= uint32(b)
		for range 8 {
			sum = sum>>1 ^ 0xedb88320*(sum&1)
		}
	}
	return ^sum
}

func TestSealed_IsWhatAnOutsiderComputes(t *testing.T) {
	good := auth.Key{ID: "k-1", Secret: fixed()}.Text()
	if got := sealed(good[:len(good)-6]); got != good {
		t.Errorf("%s, want %s", got, good)
	}
}

func TestSecret_IsNeverPrinted(t *testing.T) {
	k := auth.Key{ID: "k-1", Secret: fixed()}
	token := auth.JoinToken{ID: "t-1", Secret: fixed()}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", k, "secret", k.Secret, "token", &token)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", k, "secret", k.Secret, "token", &token)
	text, err := json.Marshal([]any{k, token, k.Secret})
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%s%s%v %+v %#v %x %v %+v %s %q", log.String(), text, k, k, k, k.Secret, token, &token, k.Secret, k.Secret)
	if !strings.Contains(printed, "[secret]") {
		t.Error("nothing stands for it")
	}
	secret := fixed()
	for what, leak := range map[string]string{
		"its text": k.Text()[11:54], "hexadecimal": fmt.Sprintf("%x", secret[:]),
		"numbers": fmt.Sprint(secret[:])[1:30], "itself": string(secret[:]),
	} {
		if strings.Contains(printed, leak) {
			t.Errorf("%s is in %s", what, printed)
		}
	}
	if !strings.Contains(k.Text(), k.Text()[11:54]) {
		t.Error("the search finds nothing")
	}
}

func TestHash_IsEqualToItsSecretOnly(t *testing.T) {
	s := fixed()
	hash := auth.Hash(s)
	if len(hash) != 64 || !auth.Equal(hash, s) {
		t.Errorf("%s is not that of its secret", hash)
	}
	s[31]++
	if auth.Equal(hash, s) || auth.Equal("", s) || auth.Equal(hash[:63], fixed()) {
		t.Error("another secret has the same hash")
	}
	if one, two := auth.NewSecret(), auth.NewSecret(); one == two {
		t.Error("two secrets are the same")
	}
}

func TestJoinToken_RoundTrip(t *testing.T) {
	for name, token := range map[string]auth.JoinToken{
		"pinned":     {ID: "t-1", Secret: fixed(), Pin: auth.Pin(auth.NewSecret())},
		"not pinned": {ID: "t-77", Secret: auth.NewSecret()},
	} {
		got, err := auth.ParseJoinToken(token.Text())
		if err != nil || got != token {
			t.Errorf("%s: %s came back as %+v: %v", name, token.Text(), got, err)
		}
	}
}

func TestParseJoinToken_Refuses(t *testing.T) {
	token := auth.JoinToken{ID: "t-1", Secret: fixed(), Pin: auth.Pin(fixed())}
	text := token.Text()
	open := auth.JoinToken{ID: "t-1", Secret: fixed()}.Text()
	for name, c := range map[string]struct{ text, want string }{
		"an access key":      {auth.Key{ID: "k-1", Secret: fixed()}.Text(), "access key"},
		"without its pin":    {strings.Replace(text, "_"+token.Pin.String(), "", 1), "typo"},
		"put together":       {open[:len(open)-6] + "_" + text[len(text)-49:], ""},
		"sealed, empty pin":  {sealed(open[:len(open)-6] + "_"), "typo"},
		"sealed, zero pin":   {sealed(open[:len(open)-6] + "_" + strings.Repeat("0", 43)), "typo"},
		"sealed, three pins": {sealed(text[:len(text)-6] + "_" + token.Pin.String()), "typo"},
		"nothing":            {" ", "not a join token"},
	} {
		got, err := auth.ParseJoinToken(c.text)
		if c.want == "" {
			if err != nil || got != token {
				t.Errorf("%s: %v", name, err) // the control: this is how the text is put together
			}
			continue
		}
		if muster.CodeOf(err) != muster.Unauthenticated || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestParseJoin(t *testing.T) {
	token := auth.JoinToken{ID: "t-1", Secret: fixed()}
	for place, want := range map[string]string{
		"registry.example":      "registry.example:9000",
		"registry.example:9443": "registry.example:9443",
		"10.0.0.1":              "10.0.0.1:9000",
		"[2001:db8::1]:9443":    "[2001:db8::1]:9443",
		"[2001:db8::1]":         "[2001:db8::1]:9000",
		"2001:db8::1":           "[2001:db8::1]:9000",
		"localhost":             "localhost:9000",
		"h\n":                   "h:9000",
		"fe80::1%eth0":          "[fe80::1%eth0]:9000",
	} {
		got, err := auth.ParseJoin(token.Text() + "@" + place)
		if err != nil || got.Address() != want || got.Token != token {
			t.Errorf("%s: %s, %v", place, got.Address(), err)
		}
	}
	for name, text := range map[string]string{
		"no place": token.Text(), "an empty place": token.Text() + "@", "a URL": token.Text() + "@https://h:1",
		"port 0": token.Text() + "@h:0", "port 65536": token.Text() + "@h:65536", "a path": token.Text() + "@h/x",
		"two places": token.Text() + "@h@i", "a word for a port": token.Text() + "@h:http", "no host": token.Text() + "@:9000",
		"half a bracket": token.Text() + "@[::1", "an odd zone": token.Text() + "@::1%]",
	} {
		if _, err := auth.ParseJoin(text); muster.CodeOf(err) != muster.Invalid || strings.Contains(text, "/") && !strings.Contains(err.Error(), "no https:// before it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := auth.ParseJoin("x@h"); muster.CodeOf(err) != muster.Unauthenticated {
		t.Errorf("no token: %v", err)
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add(auth.Key{ID: "k-1", Secret: fixed()}.Text())
	f.Add("muster_k-1_")
	f.Add(sealed("muster_k-1_" + strings.Repeat("Z", 43)))
	f.Fuzz(func(t *testing.T, text string) {
		k, err := auth.ParseKey(text)
		if err == nil && k.Text() != strings.TrimSpace(text) {
			t.Errorf("%q was read as %q", text, k.Text())
		}
		if err != nil && muster.CodeOf(err) != muster.Unauthenticated {
			t.Errorf("%q: %v", text, err)
		}
		// Whatever follows the prefix, with a checksum that fits.
		if k, err := auth.ParseKey(sealed(text)); err == nil && k.Text() != strings.TrimSpace(sealed(text)) {
			t.Errorf("%q was read as %q", sealed(text), k.Text())
		}
	})
}

func FuzzParseJoin(f *testing.F) {
	f.Add(auth.JoinToken{ID: "t-1", Secret: fixed(), Pin: auth.Pin(fixed())}.Text() + "@[::1]:9000")
	f.Add(auth.JoinToken{ID: "t-1", Secret: fixed()}.Text() + "@h")
	f.Add("@::")
	f.Fuzz(func(t *testing.T, text string) {
		try := func(text string) {
			j, err := auth.ParseJoin(text)
			if err != nil {
				return
			}
			again, err := auth.ParseJoin(j.Text())
			if err != nil || again != j {
				t.Errorf("%q was read as %q, and that as %q: %v", text, j.Text(), again.Text(), err)
			}
		}
		try(text)
		token, place, _ := strings.Cut(text, "@")
		try(sealed(token) + "@" + place)
	})
}
