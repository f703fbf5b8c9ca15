package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
)

// redacted stands wherever a secret would.
const redacted = "[secret]"

// Secret is 256 random bits. It prints as "[secret]", whatever it is printed with.
type Secret [32]byte

// NewSecret returns a fresh one.
func NewSecret() Secret {
	var s Secret
	_, _ = rand.Read(s[:]) // never fails: it ends the process instead
	return s
}

// Hash is what may be kept of a secret: SHA-256, in hexadecimal. A slow hash would
// add nothing: nobody can try 2^256 secrets.
func Hash(s Secret) string {
	sum := sha256.Sum256(s[:])
	return hex.EncodeToString(sum[:])
}

// Equal reports whether hash is that of s, in a time that does not depend on where
// they differ.
func Equal(hash string, s Secret) bool {
	return subtle.ConstantTimeCompare([]byte(hash), []byte(Hash(s))) == 1
}

// Format prints "[secret]" for every verb.
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue is "[secret]".
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns "[secret]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
