package mutants

import (
	"fmt"
	"go/scanner"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// lexeme is one token of Go and its place in the source, in bytes.
type lexeme struct {
	token    token.Token
	literal  string
	from, to int
}

// equal compares what two tokens say, wherever they stand.
func (l lexeme) equal(other lexeme) bool { return l.token == other.token && l.literal == other.literal }

// replaceTokens replaces old by new in a Go source. It compares tokens, so that a comment, an empty
// line or another indentation changes nothing. It fails unless old is there exactly once.
func replaceTokens(source []byte, old, replacement string) ([]byte, error) {
	text := lexemes(source)
	wanted := lexemes([]byte(old))
	if len(wanted) == 0 {
		return source, fmt.Errorf("the old text %q has no token", old)
	}

	places := []int{}
	for i := range text {
		if i+len(wanted) <= len(text) && slices.EqualFunc(text[i:i+len(wanted)], wanted, lexeme.equal) {
			places = append(places, i)
		}
	}
	if len(places) != 1 {
		return source, fmt.Errorf("want the tokens of %q once, have them %d times", old, len(places))
	}

	first := text[places[0]]
	last := text[places[0]+len(wanted)-1]

	changed := slices.Clone(source[:first.from])
	changed = append(changed, replacement...)
	changed = append(changed, source[last.to:]...)
	return changed, nil
}

// lexemes returns the tokens of a source without comments, and without the semicolons that the
// scanner adds at the ends of lines. A part of a file is fine, too.
func lexemes(source []byte) []lexeme {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))

	var s scanner.Scanner
	s.Init(file, source, func(token.Position, string) {}, 0)

	var all []lexeme
	for {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return all
		}
		if kind == token.SEMICOLON && literal != ";" {
			continue
		}

		from := file.Offset(at)
		text := literal
		if !kind.IsLiteral() {
			text = kind.String()
		}
		all = append(all, lexeme{kind, text, from, from + len(text)})
	}
}

func TestMutantsIgnoreLayout(t *testing.T) {
	t.Parallel()

	const source = `package p

func f() {
	// A comment.
	a := g(x) // Another comment.

	if a == 1 {
		h()
	}
}
`
	for _, tt := range []struct{ name, old, want string }{
		{"a comment and an empty line between two statements", "a := g(x)\nif a == 1 {", "\tNEW\n\t\th()"},
		{"another indentation", "if a == 1 {\n\t\t\t\th()\n}", "\tNEW\n}"},
		{"a part of a statement", "g(x)", "a := NEW // Another comment."},
	} {
		changed, err := replaceTokens([]byte(source), tt.old, "NEW")
		if err != nil || !strings.Contains(string(changed), tt.want) {
			t.Errorf("%s: want %q in %s, have error %v", tt.name, tt.want, changed, err)
		}
	}

	for _, old := range []string{"", "// A comment.", "b := g(x)", "("} {
		if _, err := replaceTokens([]byte(source), old, "NEW"); err == nil {
			t.Errorf("want an error for %q, which is not in the source exactly once", old)
		}
	}
}
