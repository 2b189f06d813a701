package rawjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Equal reports whether two JSON values mean the same: white space, the order of an object's members, the escaping of
// strings and the notation of numbers do not count. Equal bytes are equal, whatever they are, and cost one comparison;
// equal order costs one pass, and another order the decoding of both.
//
// Different bytes that are not JSON are different. In doubt the answer is false: for objects that repeat a name, and
// for numbers whose exponents no int64 holds.
func Equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}

	x, y := NewReader(a), NewReader(b)

	switch compare(x, y) {
	case same:
		return x.End() == nil && y.End() == nil
	case reordered:
		return equalTrees(a, b)
	default:
		return false
	}
}

type verdict uint8

const (
	different verdict = iota
	same
	reordered // the members of an object stand in another order: values are needed to tell
)

func verdictOf(equal bool) verdict {
	if equal {
		return same
	}

	return different
}

// compare walks over two values side by side.
func compare(x, y *Reader) verdict {
	x.space()
	y.space()

	a, b := x.peek(), y.peek()

	switch {
	case a == '{' && b == '{':
		return compareMembers(x, y, '{', '}', compareMember)
	case a == '[' && b == '[':
		return compareMembers(x, y, '[', ']', compare)
	case a == '"' && b == '"':
		return verdictOf(sameStrings(x, y))
	default:
		return verdictOf(sameScalars(x, y))
	}
}

func compareMembers(x, y *Reader, opening, closing byte, each func(x, y *Reader) verdict) verdict {
	for first := true; ; first = false {
		moreX, errX := x.next(opening, closing, first)
		moreY, errY := y.next(opening, closing, first)

		if errX != nil || errY != nil || moreX != moreY {
			return different
		}

		if !moreX {
			return same
		}

		if v := each(x, y); v != same {
			return v
		}
	}
}

func compareMember(x, y *Reader) verdict {
	a, errA := x.rawName()
	b, errB := y.rawName()

	switch {
	case errA != nil || errB != nil:
		return different
	case !sameText(a, b):
		return reordered
	default:
		return compare(x, y)
	}
}

func sameScalars(x, y *Reader) bool {
	a, errA := x.Skip()
	b, errB := y.Skip()

	if errA != nil || errB != nil {
		return false
	}

	return bytes.Equal(a, b) || isNumber(a) && isNumber(b) && parseDecimal(string(a)) == parseDecimal(string(b))
}

func sameStrings(x, y *Reader) bool {
	a, errA := x.rawString()
	b, errB := y.rawString()

	return errA == nil && errB == nil && sameText(a, b)
}

// sameText compares what two raw strings stand for.
func sameText(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}

	s, errA := unquote(a)
	t, errB := unquote(b)

	return errA == nil && errB == nil && s == t
}

// equalTrees compares whole values, for objects whose members stand in another order.
func equalTrees(a, b []byte) bool {
	x, errX := tree(a)
	y, errY := tree(b)

	return errX == nil && errY == nil && sameTrees(x, y)
}

func tree(text []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()

	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}

	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: want one value", ErrSyntax)
	}

	return value, nil
}

func sameTrees(x, y any) bool {
	switch a := x.(type) {
	case map[string]any:
		b, ok := y.(map[string]any)

		return ok && maps.EqualFunc(a, b, sameTrees)
	case []any:
		b, ok := y.([]any)

		return ok && slices.EqualFunc(a, b, sameTrees)
	case json.Number:
		b, ok := y.(json.Number)

		return ok && parseDecimal(string(a)) == parseDecimal(string(b))
	default:
		return x == y
	}
}

func isNumber(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

// decimal is a number in the one form that all its notations share: 0.digits × 10^exponent, and the zero value for 0.
type decimal struct {
	negative bool
	digits   string
	exponent int64
	odd      string // the raw text of a number whose exponent no int64 holds
}

func parseDecimal(number string) decimal {
	text, negative := strings.CutPrefix(number, "-")
	mantissa, power, _ := strings.Cut(strings.ToLower(text), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")

	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return decimal{}
	}

	exponent, err := strconv.ParseInt(cmp.Or(power, "0"), 10, 62)
	if err != nil {
		return decimal{odd: number}
	}

	exponent += int64(len(whole) - (len(whole+fraction) - len(digits)))

	return decimal{negative: negative, digits: strings.TrimRight(digits, "0"), exponent: exponent}
}
