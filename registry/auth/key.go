package auth

import (
	"regexp"
	"strings"

	"github.com/muster-cloud/muster"
)

// keyPrefix and joinPrefix begin the texts, so that scanners find them:
// muster(-join)?_[a-z0-9-]{1,32}_[0-9A-Za-z]{43}…
const keyPrefix, joinPrefix = "muster_", "muster-join_"

// What texts are called in messages.
const anAccessKey, aJoinToken = "an access key", "a join token"

// maxText bounds what is looked at, in bytes: the longest token has far fewer.
const maxText = 256

// idForm is that of the ids in texts, such as k-1.
var idForm = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$`)

// Key is an access key: which one it is, and the proof.
type Key struct {
	ID     string // such as k-1
	Secret Secret
}

// Text is the key as its owner keeps it: muster_<id>_<secret><checksum>. It is the
// only way to the secret.
func (k Key) Text() string { return sealed(keyPrefix + k.ID + "_" + encode(k.Secret)) }

// ParseKey reads the text of a key; white space around it is no harm. UNAUTHENTICATED:
// it is none, it is a join token, or it was not copied whole. The message tells which,
// and never what was given.
func ParseKey(text string) (Key, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, joinPrefix) {
		return Key{}, muster.Errorf(muster.Unauthenticated, "this is a join token, not an access key: a new node presents it, with muster agent --join TOKEN@HOST")
	}
	id, words, err := open(text, keyPrefix, anAccessKey)
	if err != nil {
		return Key{}, err
	}
	secret, ok := decode(words)
	if !ok {
		return Key{}, damaged(anAccessKey)
	}
	return Key{ID: id, Secret: secret}, nil
}

// open returns the id of a sealed text, and what comes after it.
func open(text, prefix, what string) (id, rest string, err error) {
	if !strings.HasPrefix(text, prefix) || len(text) > maxText {
		return "", "", muster.Errorf(muster.Unauthenticated, "this is not %s: one begins with %s", what, prefix)
	}
	body, ok := unseal(text)
	if !ok {
		return "", "", damaged(what)
	}
	id, rest, ok = strings.Cut(strings.TrimPrefix(body, prefix), "_")
	if !ok || !idForm.MatchString(id) {
		return "", "", damaged(what)
	}
	return id, rest, nil
}

// damaged is a text that begins like one of ours and is none.
func damaged(what string) error {
	return muster.Errorf(muster.Unauthenticated, "this is %s with a typo, or not all of one: copy all of it again", what)
}
