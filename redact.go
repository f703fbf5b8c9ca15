package muster

import "regexp"

// secretText is what access keys, join tokens and sign-in codes look like, also when the
// end is missing.
var secretText = regexp.MustCompile(`muster(?:-join)?_[a-z0-9-]{1,32}_[0-9A-Za-z_]{16,}`)

// Redacted returns s with "[secret]" in place of what looks like a key or a token: people
// paste them where an id belongs.
func Redacted(s string) string { return secretText.ReplaceAllString(s, "[secret]") }

// checkNoSecret refuses the text of a key where an id or a name belongs, and does not
// repeat it.
func checkNoSecret(field, s string) error {
	if secretText.MatchString(s) {
		return InvalidField(field, "this is the whole text of a key or token, which is a secret; give its id, the part between the first two underscores, and rotate it if others could have seen this")
	}
	return nil
}
