package check

import (
	"fmt"
	"io"
	"strings"
)

// finding is a fault, the expected state and an action.
type finding struct{ found, want, action string }

func (f finding) String() string {
	text := f.found
	if f.want != "" {
		text += "; want " + f.want
	}
	if f.action != "" {
		text += "; " + f.action
	}
	return text
}

// report prints one line for each check.
type report struct {
	out            io.Writer
	checks, failed int
	err            error // of the first line that could not be written
}

func (r *report) ok(name, format string, args ...any) {
	r.line("ok", name, fmt.Sprintf(format, args...))
}

// warn reports a finding that does not fail the check.
func (r *report) warn(name string, f finding) { r.line("warn", name, f.String()) }

func (r *report) fail(name string, f finding) {
	r.failed++
	r.line("FAIL", name, f.String())
}

func (r *report) skip(name, reason string) { r.line("skip", name, reason) }

// line writes one line. The text may have line breaks, as errors of other hosts do.
func (r *report) line(result, name, text string) {
	r.checks++
	text = strings.Join(strings.Fields(text), " ")
	if _, err := fmt.Fprintf(r.out, "%-4s  %-20s  %s\n", result, name, text); err != nil && r.err == nil {
		r.err = err
	}
}

// end prints the sum, and returns [ErrFailed] if a check failed.
func (r *report) end() error {
	if _, err := fmt.Fprintf(r.out, "\n%d checks, %d failed\n", r.checks, r.failed); err != nil && r.err == nil {
		r.err = err
	}
	if r.failed > 0 {
		return ErrFailed
	}
	return r.err
}
