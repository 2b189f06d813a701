// Package rawjson reads JSON texts (RFC 8259) in one pass without building values: a caller
// descends into the members that it needs and skips all others. It keeps slices of the text.
//
// An API server waits while its object is read. The package accepts exactly the texts that
// encoding/json accepts, and reads strings as encoding/json does: bytes that are not UTF-8 become
// U+FFFD. Only strings that are not skipped have a bound.
//
// adapters/admission reads reviews with it, and core reads objects. A change source of an
// importer uses core.DecodeObject and core.NewObject.
package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ErrSyntax means that a text is not JSON, or not of the shape that the caller reads.
var ErrSyntax = errors.New("invalid JSON")

// maxText bounds a string that is not skipped, in bytes. Names and kinds are shorter. A string that
// is not UTF-8 takes ten times its size.
const maxText = 4 << 10

// Reader walks over one JSON text. The zero value reads an empty text. It must not be used
// concurrently. After its first error every call returns that error, which wraps [ErrSyntax] and
// names the place.
type Reader struct {
	data  []byte
	pos   int
	depth int
	err   error
}

// NewReader returns a reader of data. It keeps data, and returns slices of it.
func NewReader(data []byte) *Reader { return &Reader{data: data} }

// Skip reads one value of any type and returns its bytes, without the white space around them.
func (r *Reader) Skip() ([]byte, error) {
	r.skipSpace()
	start := r.pos

	if err := r.readValue(); err != nil {
		return nil, err
	}
	return r.data[start:r.pos], nil
}

// Null reads the next value if it is a null, and reports whether it was.
func (r *Reader) Null() bool {
	r.skipSpace()
	return r.peek() == 'n' && r.readLiteral("null") == nil
}

// Object reads one object and calls member for each of its members, in the order of the text.
// member must consume the value, by exactly one call of a method other than Null, Offset and End. A
// null counts as an object without members. An error of member ends the reading and is returned
// unchanged. The name may be part of the text, and must not be changed.
func (r *Reader) Object(member func(name []byte) error) error {
	if r.Null() {
		return nil
	}
	return r.readMembers('{', '}', func() error {
		name, err := r.readName()
		if err != nil {
			return err
		}
		return member(name)
	})
}

// Array reads one array and calls element at the start of each of its elements. element must
// consume the value as member does in [Reader.Object]. A null counts as an array without elements.
func (r *Reader) Array(element func() error) error {
	if r.Null() {
		return nil
	}
	return r.readMembers('[', ']', element)
}

// Text reads one string and returns its meaning, unescaped. A null counts as the empty string.
func (r *Reader) Text() (string, error) { return r.TextLike("") }

// TextLike is [Reader.Text] for a text that often equals like. It then returns like, and needs no
// memory.
func (r *Reader) TextLike(like string) (string, error) {
	if r.Null() {
		return "", nil
	}

	raw, err := r.rawString()
	if err != nil {
		return "", err
	}

	text, err := unquote(raw)
	if string(text) == like {
		return like, err
	}

	return string(text), err
}

// Bool reads one truth value. A null counts as false.
func (r *Reader) Bool() (bool, error) {
	r.skipSpace()
	switch r.peek() {
	case 't':
		return true, r.readLiteral("true")
	case 'f':
		return false, r.readLiteral("false")
	case 'n':
		return false, r.readLiteral("null")
	default:
		return false, r.fail("true or false")
	}
}

// End returns an error if anything except white space is left.
func (r *Reader) End() error {
	r.skipSpace()
	if r.pos < len(r.data) {
		return r.fail("the end of the text")
	}
	return r.err
}

// Offset returns how many bytes of the text are read.
func (r *Reader) Offset() int { return r.pos }

// Decode hands the rest of the text to decode, which reads the next value and returns its size in
// bytes. An error of decode ends the reading and is returned unchanged.
func (r *Reader) Decode(decode func(rest []byte) (size int, err error)) error {
	if r.err != nil {
		return r.err
	}

	size, err := decode(r.data[r.pos:])
	r.pos += size
	return err
}

// readMembers reads an array or an object, calling each at the start of each member.
func (r *Reader) readMembers(opening, closing byte, each func() error) error {
	r.depth++
	switch {
	case r.peek() != opening:
		return r.fail("'" + string(rune(opening)) + "'")
	case r.depth > maxDepth:
		return r.fail(tooDeep)
	}

	r.pos++
	r.skipSpace()

	for first := true; r.peek() != closing; first = false {
		if !first {
			if r.peek() != ',' {
				return r.fail(orComma(closing))
			}

			r.pos++
			r.skipSpace()
		}

		if err := each(); err != nil {
			return err
		}

		r.skipSpace()
	}

	r.pos++
	r.depth--
	return nil
}

func (r *Reader) readName() ([]byte, error) {
	raw, err := r.rawString()
	if err != nil {
		return nil, err
	}

	r.skipSpace()
	if r.peek() != ':' {
		return nil, r.fail("':'")
	}

	r.pos++
	return unquote(raw)
}

func (r *Reader) readValue() error { return r.moveTo(skipValue(r.data, r.pos, r.depth)) }

func (r *Reader) readLiteral(word string) error { return r.moveTo(skipWord(r.data, r.pos, word)) }

// moveTo accepts the result of a skip function: the new position, and the expectation that failed.
func (r *Reader) moveTo(pos int, want string) error {
	r.pos = pos
	if want != "" {
		return r.fail(want)
	}
	return nil
}

// rawString reads one string and returns it with its quotes.
func (r *Reader) rawString() ([]byte, error) {
	if r.peek() != '"' {
		return nil, r.fail("a string")
	}

	start := r.pos
	if err := r.moveTo(skipString(r.data, r.pos+1)); err != nil {
		return nil, err
	}
	if r.pos-start > maxText {
		return nil, r.fail("a string of at most 4 KiB")
	}

	return r.data[start:r.pos], nil
}

func (r *Reader) skipSpace() { r.pos = skipSpace(r.data, r.pos) }

// peek returns the next byte, and 0 at the end: no JSON token starts with it.
func (r *Reader) peek() byte {
	if r.pos < len(r.data) {
		return r.data[r.pos]
	}
	return 0
}

// fail ends the reading: it removes the data, so nothing more is found.
func (r *Reader) fail(want string) error {
	if r.err != nil {
		return r.err
	}

	r.err = fmt.Errorf("%w: want %s at byte %d", ErrSyntax, want, r.pos)
	if r.pos >= len(r.data) {
		r.err = fmt.Errorf("%w: want %s, but the text ends at byte %d", ErrSyntax, want, len(r.data))
	}

	r.data = nil
	return r.err
}

// unquote returns the meaning of a valid raw string, without a copy if nothing in it is escaped.
func unquote(raw []byte) ([]byte, error) {
	body := raw[1 : len(raw)-1]
	if bytes.IndexByte(body, '\\') < 0 && utf8.Valid(body) {
		return body, nil
	}

	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSyntax, err)
	}

	return []byte(text), nil
}

// Len returns the number of elements of a JSON array, and 0 for anything else.
func Len(array []byte) (n int) {
	r := NewReader(array)
	err := r.Array(func() error {
		n++
		return r.readValue()
	})
	if err != nil {
		return 0
	}
	return n
}
