package rawjson

import (
	"encoding/binary"
	"math/bits"
)

// Most of every text is skipped. The functions of this file keep positions in registers instead of
// in a [Reader], and make no call for a byte. Each starts at p and returns the position behind the
// value, or the position and the expectation (want) that failed. want is empty on success.

// skipValue steps over one value inside depth arrays and objects.
func skipValue(d []byte, p, depth int) (pos int, want string) {
	if opens(d, p) {
		return skipNested(d, p, depth)
	}
	return skipScalar(d, p)
}

// opens reports whether an array or an object begins at p.
func opens(d []byte, p int) bool { return p < len(d) && (d[p] == '{' || d[p] == '[') }

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

const tooDeep = "at most 10000 nested values"

// orComma is the expectation behind a member of an array or an object.
func orComma(closing byte) string { return "',' or '" + string(rune(closing)) + "'" }

// skipNested steps over an array or an object inside depth others. It does not call itself, because
// a goroutine keeps its stack for a while: a stranger could have one of 4 MiB on each connection.
func skipNested(d []byte, p, depth int) (pos int, want string) {
	around := make([]byte, 0, 64) // The closings. Few objects need more memory.
	var closing byte
	for {
		closes := true
		if opens(d, p) {
			if depth+len(around) == maxDepth {
				return p, tooDeep
			}
			closing = d[p] + 2 // In ASCII.
			around = append(around, closing)
			p = skipSpace(d, p+1)
			closes = p < len(d) && d[p] == closing
		} else if p, want = skipScalar(d, p); want != "" {
			return p, want
		}
		for closes {
			switch p = skipSpace(d, p); {
			case p < len(d) && d[p] == closing:
				p++
				around = around[:len(around)-1]
				if len(around) == 0 {
					return p, ""
				}
				closing = around[len(around)-1]
			case p < len(d) && d[p] == ',':
				p = skipSpace(d, p+1)
				closes = false
			default:
				return p, orComma(closing)
			}
		}
		if closing == '}' {
			if p, want = skipName(d, p); want != "" {
				return p, want
			}
		}
	}
}

// skipName steps over the name of a member and the colon behind it, to its value.
func skipName(d []byte, p int) (pos int, want string) {
	if p >= len(d) || d[p] != '"' {
		return p, "a string"
	}

	if p, want = skipString(d, p+1); want != "" {
		return p, want
	}

	if p = skipSpace(d, p); p >= len(d) || d[p] != ':' {
		return p, "':'"
	}
	return skipSpace(d, p+1), ""
}

// skipString steps over a string from behind its opening quote.
func skipString(d []byte, p int) (pos int, want string) {
	for {
		for p+8 <= len(d) {
			if found := special(binary.LittleEndian.Uint64(d[p:])); found != 0 {
				p += bits.TrailingZeros64(found) / 8
				break
			}

			p += 8
		}

		for p < len(d) && plain[d[p]] {
			p++
		}

		switch {
		case p < len(d) && d[p] == '"':
			return p + 1, ""
		case p < len(d) && d[p] == '\\':
			if p, want = skipEscape(d, p+1); want != "" {
				return p, want
			}
		default:
			return p, "the end of a string"
		}
	}
}

func skipEscape(d []byte, p int) (pos int, want string) {
	if p >= len(d) {
		return p, "an escape sequence"
	}

	switch d[p] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return p + 1, ""
	case 'u':
		for range 4 {
			p++

			if p >= len(d) || !isHex(d[p]) {
				return p, "four hexadecimal digits"
			}
		}
		return p + 1, ""
	default:
		return p, "an escape sequence"
	}
}

func skipWord(d []byte, p int, word string) (pos int, want string) {
	if len(d)-p < len(word) || string(d[p:p+len(word)]) != word {
		return p, word
	}
	return p + len(word), ""
}

func skipNumber(d []byte, p int) (pos int, want string) {
	if p < len(d) && d[p] == '-' {
		p++
	}

	if p < len(d) && d[p] == '0' {
		p++
	} else if p, want = skipDigits(d, p); want != "" {
		return p, want
	}

	if p < len(d) && d[p] == '.' {
		if p, want = skipDigits(d, p+1); want != "" {
			return p, want
		}
	}

	if p >= len(d) || d[p] != 'e' && d[p] != 'E' {
		return p, ""
	}

	p++

	if p < len(d) && (d[p] == '+' || d[p] == '-') {
		p++
	}

	return skipDigits(d, p)
}

func skipDigits(d []byte, p int) (pos int, want string) {
	start := p
	for p < len(d) && d[p] >= '0' && d[p] <= '9' {
		p++
	}
	if p == start {
		return p, "a value"
	}
	return p, ""
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// plain marks the bytes of a string that need no check: all but quote, backslash and control
// characters.
var plain = func() (table [256]bool) {
	for c := range table {
		table[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return table
}()

// special marks the high bit of each byte in word that is not plain. A byte behind the first marked
// one may be marked, too, although it is plain: a subtraction borrows from it.
func special(word uint64) uint64 {
	const (
		each = 0x0101010101010101
		high = each << 7
	)
	quote, backslash := word^each*'"', word^each*'\\'
	// The high bits of all three words are those of word.
	return ((quote - each) | (backslash - each) | (word - each*' ')) &^ word & high
}

// skipSpace is short enough to be inlined: API servers write no white space.
func skipSpace(d []byte, p int) int {
	if p < len(d) && d[p] <= ' ' {
		return skipSpaces(d, p)
	}
	return p
}

func skipSpaces(d []byte, p int) int {
	for p < len(d) && (d[p] == ' ' || d[p] == '\t' || d[p] == '\n' || d[p] == '\r') {
		p++
	}
	return p
}
