package condition

import (
	"fmt"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/parser"
)

const (
	// maxLength bounds an expression, in code points. The cost of an expression grows with it.
	maxLength = 1024
	// maxTotal bounds the result, in bytes. An API server takes about 0.4 s to compile that many.
	maxTotal = 12 << 10
)

// Total returns an expression with the same value as the given expression, but true if the given
// expression fails. It may use the variables object, oldObject and request. The error wraps
// [ErrInvalid].
func Total(expression string) (string, error) {
	source := common.NewTextSource(expression)
	// Without macros, has() and all() are calls like any other.
	p, err := parser.NewParser(parser.ExpressionSizeCodePointLimit(maxLength), parser.MaxRecursionDepth(maxDepth))
	if err != nil {
		return "", fmt.Errorf("parser of CEL: %w", err)
	}

	tree, problems := p.Parse(source)
	if found := problems.GetErrors(); len(found) > 0 {
		return "", invalidAt(found[0].Location, "%s", found[0].Message)
	}

	t := translator{info: tree.SourceInfo()}
	term := t.translateBoolean(tree.Expr())
	if t.err != nil {
		return "", t.err
	}

	total := term.text
	if len(term.guard) > 0 {
		total = "!" + conjunction(term.guard) + " || " + term.text
	}
	if len(total) > maxTotal {
		return "", fmt.Errorf("%w: too complex: with its guard it has %d bytes, want at most %d",
			ErrInvalid, len(total), maxTotal)
	}

	return total, nil
}

const maxDepth = 64
