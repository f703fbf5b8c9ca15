package auth

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// EncodeBundle writes certificates as PEM.
func EncodeBundle(certificates []*x509.Certificate) []byte {
	var text []byte
	for _, c := range certificates {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: c.Raw})...)
	}
	return text
}

// DecodeBundle reads the certificates of a PEM text, at least one; whatever else is in
// it, a private key for instance, is an error.
func DecodeBundle(text []byte) ([]*x509.Certificate, error) {
	certificates, others, err := decodePEM(text)
	if err == nil && len(others) > 0 {
		err = fmt.Errorf("there is a %s among the certificates", others[0].Type)
	}
	if err == nil && len(certificates) == 0 {
		err = errors.New("there is no certificate in it; it has to be PEM, which begins with -----BEGIN CERTIFICATE-----")
	}
	if err != nil {
		return nil, err
	}
	return certificates, nil
}

func decodePEM(text []byte) (certificates []*x509.Certificate, others []*pem.Block, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return certificates, others, nil
		}
		if block.Type != certificateType {
			others = append(others, block)
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("a certificate in it cannot be read: %w", err)
		}
		certificates = append(certificates, c)
	}
}

// EncodeKey writes a private key as PEM.
func EncodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der}), nil
}

// DecodeKey reads what EncodeKey wrote.
func DecodeKey(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != keyType {
		return nil, errors.New("there is no private key in it; it has to be PEM, which begins with -----BEGIN PRIVATE KEY-----")
	}
	return parseKey(block.Bytes)
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	any, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("the private key in it cannot be read") // the cause may quote it
	}
	key, ok := any.(*ecdsa.PrivateKey)
	if !ok || !isP256(key.Public()) {
		return nil, errors.New("the private key in it is not ECDSA on P-256")
	}
	return key, nil
}

// Encode writes the authority, its private key too, as PEM.
func (ca *CA) Encode() ([]byte, error) {
	text, err := EncodeKey(ca.key)
	if err != nil {
		return nil, err
	}
	for _, g := range ca.generations {
		text = append(text, EncodeBundle([]*x509.Certificate{g.root})...)
		if g.cross != nil {
			text = append(text, EncodeBundle([]*x509.Certificate{g.cross})...)
		}
	}
	return text, nil
}

// DecodeCA reads what Encode wrote, and checks that all of it belongs together.
func DecodeCA(text []byte) (*CA, error) {
	certificates, others, err := decodePEM(text)
	if err != nil {
		return nil, err
	}
	if len(others) != 1 || others[0].Type != keyType {
		return nil, errors.New("there is not exactly one private key in it")
	}
	ca := new(CA)
	if ca.key, err = parseKey(others[0].Bytes); err != nil {
		return nil, err
	}
	for _, c := range certificates {
		if err := ca.add(c); err != nil {
			return nil, err
		}
	}
	if len(ca.generations) == 0 || !ca.key.PublicKey.Equal(ca.generations[0].root.PublicKey) {
		return nil, errors.New("its private key is not that of its first certificate")
	}
	return ca, nil
}

// add takes the next certificate of an encoded authority: a root, or the same key by
// the generation before.
func (ca *CA) add(c *x509.Certificate) error {
	who, ok := IdentityOf(c)
	if !ok || who.role != "ca" || !c.IsCA || ca.cluster != "" && ca.cluster != who.ClusterUID {
		return fmt.Errorf("the certificate %q in it is not that of a cluster's authority", c.Subject.CommonName)
	}
	ca.cluster = who.ClusterUID
	if c.CheckSignatureFrom(c) == nil {
		ca.generations = append(ca.generations, generation{root: c})
		return nil
	}
	last := len(ca.generations) - 1
	if last < 0 || !slices.Equal(c.RawSubjectPublicKeyInfo, ca.generations[last].root.RawSubjectPublicKeyInfo) {
		return fmt.Errorf("the certificate %q in it does not belong to the one before", c.Subject.CommonName)
	}
	ca.generations[last].cross = c
	return nil
}
