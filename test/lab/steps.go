package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Steps are the steps of a long test, with the time that each took. They are logged as a table.
type Steps struct {
	begun time.Time
	table []string
}

// NewSteps returns no steps. The first one begins now.
func NewSteps() *Steps { return &Steps{begun: time.Now()} }

// Done adds a step that has ended.
func (s *Steps) Done(format string, args ...any) {
	took := time.Since(s.begun)
	s.begun = s.begun.Add(took)
	s.table = append(s.table, fmt.Sprintf("%5.1f s  %s", took.Seconds(), fmt.Sprintf(format, args...)))
}

// Len returns the number of steps.
func (s *Steps) Len() int { return len(s.table) }

// Log logs the table.
func (s *Steps) Log(t testing.TB) {
	t.Helper()
	var table strings.Builder
	for n, step := range s.table {
		fmt.Fprintf(&table, "  %2d  %s\n", n+1, step)
	}
	t.Logf("steps:\n%s", table.String())
}
