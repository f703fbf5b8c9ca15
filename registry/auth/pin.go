package auth

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
)

// Pin is the SHA-256 of a public key (its SubjectPublicKeyInfo in DER). It stays the
// same when a certificate is renewed with the same key. The zero Pin pins nothing.
type Pin [32]byte

// PinOf returns the pin of a certificate's public key.
func PinOf(c *x509.Certificate) Pin { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// PinOfKey returns the pin of a public key.
func PinOfKey(public crypto.PublicKey) (Pin, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return Pin{}, fmt.Errorf("pin a public key: %w", err)
	}
	return sha256.Sum256(der), nil
}

// IsZero reports whether it pins nothing.
func (p Pin) IsZero() bool { return p == Pin{} }

// String is the pin as a join token carries it; empty for none. It is no secret.
func (p Pin) String() string {
	if p.IsZero() {
		return ""
	}
	return encode(p)
}

// ParsePin reads what String wrote.
func ParsePin(text string) (Pin, error) {
	bits, ok := decode(text)
	if !ok || Pin(bits).IsZero() {
		return Pin{}, fmt.Errorf("a pin has %d letters and digits", wordLength)
	}
	return bits, nil
}
