package rawjson

import "bytes"

// certainlyDiffer reports whether the first bytes that differ belong to two scalars with different
// meanings, at the same place of both texts. Then the texts differ. This finds the usual change in
// a large object without reading the object. False means that it is not known. common is the number
// of bytes with which both texts begin.
//
// The place is the same, because everything before it is: the members and the indexes around it. If
// an object repeats a name, or a text is not JSON, then true is right, too: see [Equal].
func certainlyDiffer(a, b []byte, common int) bool {
	if start := openString(a[:common]); start >= 0 {
		return stringsDiffer(a[start:], b[start:])
	}
	start := common
	for start > 0 && inNumber(a[start-1]) {
		start--
	}
	return numbersDiffer(a[start:], b[start:])
}

// openString returns the place of the last quote before the end of a text that ends in a string, or
// -1. That quote may be escaped, because both texts are the same up to there.
func openString(text []byte) int {
	if (bytes.Count(text, []byte{'"'})-escapedQuotes(text))%2 == 0 {
		return -1
	}
	return bytes.LastIndexByte(text, '"')
}

func escapedQuotes(text []byte) (n int) {
	for {
		backslash := bytes.IndexByte(text, '\\')
		if backslash < 0 || backslash+1 == len(text) {
			return n
		}
		if text[backslash+1] == '"' {
			n++
		}
		text = text[backslash+2:]
	}
}

// stringsDiffer compares the strings with which both texts begin, unless one is the name of a
// member: members may have another order.
func stringsDiffer(a, b []byte) bool {
	x, y := NewReader(a), NewReader(b)
	s, errS := x.rawString()
	t, errT := y.rawString()
	x.space()
	y.space()
	return errS == nil && errT == nil && x.peek() != ':' && y.peek() != ':' && !sameText(s, t)
}

// numbersDiffer compares the numbers with which both texts begin.
func numbersDiffer(a, b []byte) bool {
	endA, wantA := skipNumber(a, 0)
	endB, wantB := skipNumber(b, 0)
	return wantA == "" && wantB == "" && !sameNumbers(a[:endA], b[:endB])
}

// inNumber reports whether a number may have this byte.
func inNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E'
}
