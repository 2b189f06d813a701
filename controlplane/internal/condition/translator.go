package condition

import (
	"errors"
	"fmt"

	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
)

// ErrInvalid means that an expression is not valid CEL or not in the allowed part of CEL. The error
// names the line and the column.
var ErrInvalid = errors.New("invalid expression")

type translator struct {
	info *ast.SourceInfo
	// item is the variable of the macro around the current node, "" outside.
	item string
	// err is the first refusal. The terms after it do not matter.
	err error
}

func (t *translator) refuse(e ast.Expr, format string, args ...any) term {
	if t.err == nil {
		t.err = invalidAt(t.info.GetStartLocation(e.ID()), format, args...)
	}
	return term{}
}

// invalidAt counts lines and columns from 1. An error about the whole expression has no position.
func invalidAt(at common.Location, format string, args ...any) error {
	if at.Line() < 1 {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	return fmt.Errorf("%w: line %d, column %d: %s", ErrInvalid, at.Line(), at.Column()+1, fmt.Sprintf(format, args...))
}
