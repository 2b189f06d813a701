package rawjson

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"strings"
)

// Most of every text is skipped. The functions of this file keep positions in registers instead of
// in a [Reader]. Each starts at p and returns the position behind the value, or the position and
// the expectation (want) that failed. want is empty on success.

// maxDepth is how deep arrays and objects may nest, the bound of encoding/json.
const maxDepth = 10000

const tooDeep = "at most 10000 nested values"

func orComma(closing byte) string { return "',' or '" + string(rune(closing)) + "'" }

// skipValue steps over one value inside depth arrays and objects. It does not call itself, because
// a goroutine keeps its stack for a while: an untrusted client could otherwise keep a stack of 4
// MiB on each connection.
func skipValue(d []byte, p, depth int) (pos int, want string) {
	around := make([]byte, 0, 64) // The closing brackets. Few objects need more memory.
	for {
		ends := true
		if p < len(d) && opensNested(d[p]) {
			if depth+len(around) == maxDepth {
				return p, tooDeep
			}

			closing := d[p] + 2 // In ASCII.
			around = append(around, closing)
			p = skipSpace(d, p+1)
			ends = p < len(d) && d[p] == closing
		} else if p, want = skipScalar(d, p); want != "" {
			return p, want
		}

		for ends && len(around) > 0 {
			closing := around[len(around)-1]
			p = skipSpace(d, p)
			switch {
			case p < len(d) && d[p] == closing:
				p++
				around = around[:len(around)-1]
			case p < len(d) && d[p] == ',':
				p = skipSpace(d, p+1)
				ends = false
			default:
				return p, orComma(closing)
			}
		}

		if len(around) == 0 {
			return p, ""
		}
		if around[len(around)-1] == '}' {
			if p, want = skipName(d, p); want != "" {
				return p, want
			}
		}
	}
}

func opensNested(c byte) bool { return c == '{' || c == '[' }

func skipScalar(d []byte, p int) (pos int, want string) {
	if p >= len(d) {
		return p, "a value"
	}

	switch d[p] {
	case '"':
		return skipString(d, p+1)
	case 't':
		return skipWord(d, p, "true")
	case 'f':
		return skipWord(d, p, "false")
	case 'n':
		return skipWord(d, p, "null")
	default:
		return skipNumber(d, p)
	}
}

func skipName(d []byte, p int) (pos int, want string) {
	if p >= len(d) || d[p] != '"' {
		return p, "a string"
	}
	if p, want = skipString(d, p+1); want != "" {
		return p, want
	}

	p = skipSpace(d, p)
	if p >= len(d) || d[p] != ':' {
		return p, "':'"
	}
	return skipSpace(d, p+1), ""
}

// skipString steps over a string from behind its opening quote. Escapes with a code point are rare.
func skipString(d []byte, p int) (pos int, want string) {
	start := p - 1
	codes := false
	for {
		for p+8 <= len(d) {
			if found := special(d[p:]); found != 0 {
				p += bits.TrailingZeros64(found) / 8
				break
			}
			p += 8
		}

		for p < len(d) && isPlain(d[p]) {
			p++
		}

		switch {
		case p == len(d):
			return p, "the end of a string"
		case d[p] == '"' && codes && !json.Valid(d[start:p+1]):
			return start, "a string with valid escapes"
		case d[p] == '"':
			return p + 1, ""
		case d[p] != '\\' || p+1 == len(d) || strings.IndexByte(`"\/bfnrtu`, d[p+1]) < 0:
			return p, "a valid character or escape"
		}

		codes = codes || d[p+1] == 'u'
		p += 2
	}
}

// isPlain reports whether a byte of a string needs no further check.
func isPlain(c byte) bool { return c >= ' ' && c != '"' && c != '\\' }

// special marks the high bit of each of eight bytes that is a quote, a backslash or a control
// character. A byte behind the first marked one may be marked without being one: a subtraction
// borrows from it.
func special(d []byte) uint64 {
	const each = 0x0101010101010101
	word := binary.LittleEndian.Uint64(d)
	quote := word ^ each*'"'
	backslash := word ^ each*'\\'

	// The high bits of all three words are the high bits of word.
	return ((quote - each) | (backslash - each) | (word - each*' ')) &^ word & (each << 7)
}

func skipWord(d []byte, p int, word string) (pos int, want string) {
	if len(d)-p < len(word) || string(d[p:p+len(word)]) != word {
		return p, word
	}
	return p + len(word), ""
}

// skipNumber steps over the bytes of which numbers consist. In JSON, none of these bytes can follow
// a number. Most numbers are integers, which need no further check.
func skipNumber(d []byte, p int) (pos int, want string) {
	start := p
	for p < len(d) && isDigit(d[p]) {
		p++
	}

	hasZeroInFront := p > start+1 && d[start] == '0'
	continues := p < len(d) && isInFloat(d[p])
	isInteger := p > start && !hasZeroInFront && !continues
	if isInteger {
		return p, ""
	}

	for p < len(d) && isInNumber(d[p]) {
		p++
	}

	if !json.Valid(d[start:p]) {
		return start, "a value"
	}

	return p, ""
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// isInFloat reports whether a byte begins a fraction or an exponent.
func isInFloat(c byte) bool { return c == '.' || c == 'e' || c == 'E' }

func isInNumber(c byte) bool { return isDigit(c) || isInFloat(c) || isSign(c) }

func isSign(c byte) bool { return c == '-' || c == '+' }

func skipSpace(d []byte, p int) int {
	for p < len(d) && d[p] <= ' ' && isSpace(d[p]) {
		p++
	}
	return p
}

func isSpace(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '\r':
		return true
	default:
		return false
	}
}
