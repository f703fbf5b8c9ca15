package auth

import (
	"hash/crc32"
	"math/big"
	"strings"
)

const (
	// digits are those of math/big in this base: a word of them is selected by a double click.
	digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	// wordLength is that of 256 bits, checkLength that of 32, in base 62.
	wordLength, checkLength = 43, 6
)

// encode writes 256 bits as a word of a fixed length.
func encode(bits [32]byte) string {
	return pad(new(big.Int).SetBytes(bits[:]).Text(len(digits)), wordLength)
}

// decode reads what encode wrote, and nothing else.
func decode(word string) (bits [32]byte, ok bool) {
	if len(word) != wordLength || !isWord(word) {
		return bits, false
	}
	n, ok := new(big.Int).SetString(word, len(digits))
	if !ok || n.BitLen() > 8*len(bits) {
		return bits, false
	}
	n.FillBytes(bits[:])
	return bits, true
}

// checksum is of all the text before it.
func checksum(text string) string {
	return pad(big.NewInt(int64(crc32.ChecksumIEEE([]byte(text)))).Text(len(digits)), checkLength)
}

// sealed returns text with its checksum.
func sealed(text string) string { return text + checksum(text) }

// unseal takes the checksum off, and reports whether it is right.
func unseal(text string) (body string, ok bool) {
	at := len(text) - checkLength
	if at < 0 {
		return "", false
	}
	return text[:at], text[at:] == checksum(text[:at])
}

func pad(word string, length int) string {
	return strings.Repeat("0", max(0, length-len(word))) + word
}

// isWord reports whether a text is made of our digits only.
func isWord(text string) bool {
	return strings.Trim(text, digits) == ""
}
