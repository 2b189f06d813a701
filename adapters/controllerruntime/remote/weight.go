package remote

import (
	"errors"
	"unicode/utf8"
)

// ErrLargeAnswer means that the answers of a cluster are larger than its bounds. A list may fit in
// smaller pages.
var ErrLargeAnswer = errors.New("answer is larger than allowed")

// scale weighs JSON while it is read. A text that is no JSON weighs as much or less.
type scale struct {
	text    bool // inside a string
	escaped bool // by a backslash
}

// beginsValue reports whether a value of an object or a list follows.
func beginsValue(c byte) bool { return c == ',' || c == '{' || c == '[' }

// weighPart counts the values of objects and lists that begin in part, too.
func (s *scale) weighPart(part []byte) (weight int64) {
	weight = byteWeight * int64(len(part))
	for _, c := range part {
		switch {
		case c >= utf8.RuneSelf:
			weight += otherWeight - byteWeight
			s.escaped = false
		case s.escaped:
			s.escaped = false
		case s.text && c == '\\':
			s.escaped = true
		case c == '"':
			s.text = !s.text
		case !s.text && beginsValue(c):
			weight += valueWeight
		}
	}

	return weight
}

// The weight of an answer is about the memory that takes to read and to decode it. An invalid byte
// becomes a character of three.
const byteWeight, otherWeight, valueWeight = 4, 16, 256 // ASCII, beyond ASCII, a value beside its text
