package rawjson

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// maxDecoded bounds, in bytes, two texts together that are decoded to compare them. Decoded values
// take up to 25 times as much memory as their text.
const maxDecoded = 256 << 10

// Equal reports whether two JSON values mean the same. White space, the order of an object's
// members, the escaping of strings and the notation of numbers do not count. Equal bytes are equal,
// also when they are not JSON. Equal order costs one pass and no memory.
//
// Different bytes that are not JSON are different. In doubt the answer is false. Doubtful are
// objects that repeat a name, and numbers with an exponent beyond an int64. So are texts of which
// more than 256 KiB would have to be decoded.
func Equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	common := commonPrefix(a, b)
	if certainlyDiffer(a, b, common) {
		return false
	}
	p := pair{x: Reader{data: a}, y: Reader{data: b}, common: common, budget: len(a)}
	switch p.compareParts() {
	case same:
		return p.x.End() == nil && p.y.End() == nil
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
	reordered // the members of an object have another order: the values decide
)

func verdictOf(equal bool) verdict {
	if equal {
		return same
	}
	return different
}

// pair walks over two values side by side.
type pair struct {
	x, y Reader

	// x.data up to common equals y.data shift bytes further on.
	common, shift int
	// budget bounds, in bytes, the text that may be read twice.
	budget int
}

func (p *pair) compare() verdict {
	p.x.space()
	p.y.space()
	if a := p.x.peek(); (a == '{' || a == '[') && a == p.y.peek() && p.skipEqual() {
		return same
	}
	return p.compareParts()
}

// compareParts compares two values with different bytes.
func (p *pair) compareParts() verdict {
	p.x.space()
	p.y.space()
	a, b := p.x.peek(), p.y.peek()
	switch {
	case a == '{' && b == '{':
		return p.compareMembers('{', '}', p.compareMember)
	case a == '[' && b == '[':
		return p.compareMembers('[', ']', p.compare)
	case a == '"' && b == '"':
		return verdictOf(p.sameStrings())
	default:
		return verdictOf(p.sameScalars())
	}
}

// skipEqual steps over an array or an object that both texts have byte for byte, reading one of
// them. On failure its caller reads the bytes again, at every level of nesting: budget bounds their
// sum.
func (p *pair) skipEqual() bool {
	if p.budget <= 0 {
		return false
	}

	if shift := p.y.pos - p.x.pos; shift != p.shift || p.x.pos >= p.common {
		p.shift = shift
		p.common = p.x.pos + commonPrefix(p.x.data[p.x.pos:], p.y.data[p.y.pos:])
	}

	pos, want := skipValue(p.x.data[:p.common], p.x.pos, p.x.depth)
	if want != "" {
		p.budget -= pos - p.x.pos
		return false
	}

	p.x.pos, p.y.pos = pos, pos+p.shift

	return true
}

// commonPrefix returns the number of bytes with which both begin. It looks at eight bytes at once.
func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	pos := 0
	for ; pos+8 <= n; pos += 8 {
		if diff := binary.LittleEndian.Uint64(a[pos:]) ^ binary.LittleEndian.Uint64(b[pos:]); diff != 0 {
			return pos + bits.TrailingZeros64(diff)/8
		}
	}
	for pos < n && a[pos] == b[pos] {
		pos++
	}
	return pos
}

func (p *pair) compareMembers(opening, closing byte, each func() verdict) verdict {
	for first := true; ; first = false {
		moreX, errX := p.x.next(opening, closing, first)
		moreY, errY := p.y.next(opening, closing, first)
		if errX != nil || errY != nil || moreX != moreY {
			return different
		}
		if !moreX {
			return same
		}
		if v := each(); v != same {
			return v
		}
	}
}

func (p *pair) compareMember() verdict {
	a, errA := p.x.rawName()
	b, errB := p.y.rawName()
	switch {
	case errA != nil || errB != nil:
		return different
	case !sameText(a, b):
		return p.compareNames(a, b)
	default:
		return p.compare()
	}
}

// compareNames distinguishes members in another order from members that only one of two objects
// has. a and b are the names at the same place. Reading on is faster than decoding.
func (p *pair) compareNames(a, b []byte) verdict {
	if len(p.x.data)+len(p.y.data) > maxDecoded {
		return different
	}
	namesX, errX := p.x.namesFrom(a)
	namesY, errY := p.y.namesFrom(b)
	if errX != nil || errY != nil || !slices.Equal(namesX, namesY) {
		return different
	}
	return reordered
}

// namesFrom reads the rest of an object behind the name raw, and returns the set of names from
// there on, sorted.
func (r *Reader) namesFrom(raw []byte) (names []string, err error) {
	for more := true; more && err == nil; {
		var name []byte
		if name, err = unquote(raw); err != nil {
			return nil, err
		}

		names = append(names, string(name))

		if _, err = r.Skip(); err != nil {
			return nil, err
		}

		if more, err = r.next('{', '}', false); more && err == nil {
			raw, err = r.rawName()
		}
	}

	slices.Sort(names)
	return slices.Compact(names), err
}

func (p *pair) sameScalars() bool {
	a, errA := p.x.Skip()
	b, errB := p.y.Skip()
	if errA != nil || errB != nil {
		return false
	}
	return bytes.Equal(a, b) || sameNumbers(a, b)
}

func sameNumbers(a, b []byte) bool {
	if !isNumber(a) || !isNumber(b) || len(a)+len(b) > maxDecoded {
		return false
	}
	return parseDecimal(string(a)) == parseDecimal(string(b))
}

func (p *pair) sameStrings() bool {
	a, errA := p.x.rawString()
	b, errB := p.y.rawString()
	return errA == nil && errB == nil && sameText(a, b)
}

// sameText compares the meaning of two raw strings.
func sameText(a, b []byte) bool {
	if bytes.Equal(a, b) || len(a)+len(b) > maxDecoded {
		return bytes.Equal(a, b)
	}
	s, errA := unquote(a)
	t, errB := unquote(b)
	return errA == nil && errB == nil && bytes.Equal(s, t)
}

// equalTrees compares whole values, for objects with members in another order.
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

// decimal is a number in one form for all its notations: 0.digits × 10^exponent. The zero value is
// 0.
type decimal struct {
	negative bool
	digits   string
	exponent int64
	odd      string // the raw text of a number with an exponent beyond an int64
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
