package measure

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// MaxColumns is the number of columns that a line may have.
	MaxColumns = 120
	// tabColumns is the width of a tab, as in .editorconfig and .golangci.yml.
	tabColumns = 4
)

// Lines counts lines of code that is neither generated nor a test.
type Lines struct {
	Total   int
	Code    int
	Comment int
	Blank   int
	Long    int
	// Functions are the lines of each function's body, from its opening to its closing brace, at
	// least 1. Function literals do not count.
	Functions []int
}

// Add adds the counts of other modules.
func (l *Lines) Add(other Lines) {
	l.Total += other.Total
	l.Code += other.Code
	l.Comment += other.Comment
	l.Blank += other.Blank
	l.Long += other.Long
	l.Functions = append(l.Functions, other.Functions...)
}

// Quantile returns the length that the given share of all functions does not exceed: 0.5 is the
// median. It returns 0 without functions.
func (l *Lines) Quantile(share float64) int {
	if len(l.Functions) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l.Functions))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// Lines counts the lines of a module. A line with code and a comment is a line of code.
func (t *Tree) Lines(module string) Lines {
	var total Lines
	for _, f := range t.handwritten(module) {
		total.Add(t.linesOf(f))
	}
	return total
}

// AllLines returns the number of lines of all Go files below a folder, with tests and without
// generated files.
func (t *Tree) AllLines(folder string) int {
	lines := 0
	for _, f := range t.files {
		if !f.generated && strings.HasPrefix(f.name, folder+"/") {
			lines += strings.Count(f.source, "\n")
		}
	}
	return lines
}

func (t *Tree) linesOf(f *file) Lines {
	var l Lines
	comment := t.commentLines(f)
	for i, line := range strings.Split(strings.TrimSuffix(f.source, "\n"), "\n") {
		l.Total++
		switch {
		case strings.TrimSpace(line) == "":
			l.Blank++
		case comment[i+1]:
			l.Comment++
		default:
			l.Code++
		}
		if Columns(line) > MaxColumns {
			l.Long++
		}
	}
	l.Functions = t.lengths(f)
	return l
}

// commentLines returns the numbers of the lines that hold nothing but a comment.
func (t *Tree) commentLines(f *file) map[int]bool {
	lines := map[int]bool{}
	for _, group := range f.syntax.Comments {
		for _, comment := range group.List {
			if !t.startsLine(f, comment.Pos()) {
				continue
			}
			for line := t.line(comment.Pos()); line <= t.line(comment.End()); line++ {
				lines[line] = true
			}
		}
	}
	return lines
}

// startsLine reports whether pos is the first on its line except for blanks.
func (t *Tree) startsLine(f *file, pos token.Pos) bool {
	position := t.fset.Position(pos)
	before := f.source[position.Offset-position.Column+1 : position.Offset]
	return strings.TrimSpace(before) == ""
}

func (t *Tree) line(pos token.Pos) int { return t.fset.Position(pos).Line }

func (t *Tree) lengths(f *file) []int {
	var lengths []int
	for _, decl := range f.syntax.Decls {
		if decl, ok := decl.(*ast.FuncDecl); ok && decl.Body != nil {
			lengths = append(lengths, t.line(decl.Body.Rbrace)-t.line(decl.Body.Lbrace)+1)
		}
	}
	return lengths
}

// Columns returns the width of a line. A tab is four columns wide.
func Columns(line string) int {
	return utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabColumns-1)
}
