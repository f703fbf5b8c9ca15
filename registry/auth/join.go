package auth

import (
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/muster-cloud/muster"
)

// DefaultPort is the server's where a join names none.
const DefaultPort = 9000

// JoinToken lets a new node in.
type JoinToken struct {
	ID     string // such as t-1
	Secret Secret
	Pin    Pin // of the certificate authority of the server; zero: the server has no TLS
}

// Text is the token as it is handed on: muster-join_<id>_<secret>_<pin><checksum>, or
// without the pin and the sign before it.
func (t JoinToken) Text() string {
	text := joinPrefix + t.ID + "_" + encode(t.Secret)
	if !t.Pin.IsZero() {
		text += "_" + t.Pin.String()
	}
	return sealed(text)
}

// ParseJoinToken reads the text of a token, as ParseKey does that of a key.
func ParseJoinToken(text string) (JoinToken, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, keyPrefix) {
		return JoinToken{}, muster.Errorf(muster.Unauthenticated, "this is an access key, not a join token: make one with muster token create")
	}
	id, words, err := open(text, joinPrefix, aJoinToken)
	if err != nil {
		return JoinToken{}, err
	}
	t := JoinToken{ID: id}
	word, pin, pinned := strings.Cut(words, "_")
	secret, ok := decode(word)
	if !ok {
		return JoinToken{}, damaged(aJoinToken)
	}
	t.Secret = secret
	if pinned {
		if t.Pin, err = ParsePin(pin); err != nil {
			return JoinToken{}, damaged(aJoinToken)
		}
	}
	return t, nil
}

// Join is where a new node joins, and with what.
type Join struct {
	Token JoinToken
	Host  string // name or IP, without brackets
	Port  int
}

// Address is host and port as one dials them.
func (j Join) Address() string { return net.JoinHostPort(j.Host, strconv.Itoa(j.Port)) }

// Text is the join as it is typed.
func (j Join) Text() string { return j.Token.Text() + "@" + j.Address() }

// hostForm is that of a name in DNS.
var hostForm = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?$`)

// ParseJoin reads TOKEN@HOST[:PORT]. INVALID, field join: the place is missing or
// cannot be one; UNAUTHENTICATED: as ParseJoinToken says.
func ParseJoin(text string) (Join, error) {
	token, place, ok := strings.Cut(strings.TrimSpace(text), "@")
	if !ok || place == "" {
		return Join{}, muster.InvalidField("join", "it does not say which server to join: write TOKEN@HOST, or TOKEN@HOST:PORT")
	}
	t, err := ParseJoinToken(token)
	if err != nil {
		return Join{}, err
	}
	host, port, err := parsePlace(place)
	if err != nil {
		return Join{}, err
	}
	return Join{Token: t, Host: host, Port: port}, nil
}

// parsePlace reads HOST[:PORT]; an IPv6 address without a port needs no brackets.
func parsePlace(place string) (string, int, error) {
	host, port := place, DefaultPort
	if strings.Contains(place, "/") { // a URL, whose scheme would be taken for a host
		return "", 0, noHost(place)
	}
	if inside, ok := strings.CutPrefix(place, "["); ok && strings.HasSuffix(inside, "]") {
		host = strings.TrimSuffix(inside, "]")
	} else if h, p, err := net.SplitHostPort(place); err == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, muster.InvalidField("join", "%q is no port: write TOKEN@HOST:PORT", muster.Printable(p, 20))
		}
		host, port = h, int(n)
	}
	if !isHost(host) {
		return "", 0, noHost(host)
	}
	return host, port, nil
}

func noHost(text string) error {
	return muster.InvalidField("join", "%q is no host: write TOKEN@HOST, with a name or an IP address and no https:// before it", muster.Printable(text, 80))
}

// isHost reports whether a text is an IP address or a name.
func isHost(text string) bool {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return hostForm.MatchString(text)
	}
	return ip.Zone() == "" || hostForm.MatchString(ip.Zone())
}
