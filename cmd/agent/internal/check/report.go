package check

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrFailed means that at least one check failed. The output names it.
var ErrFailed = errors.New("checks failed")

type report struct {
	out            io.Writer
	checks, failed int
	err            error // of the first line that could not be written
}

func (r *report) reportSettings(mistakes, warnings []string) {
	for _, mistake := range mistakes {
		r.fail("settings", strings.TrimSuffix(mistake, ".")+"; correct it, agent --help lists all settings")
	}
	for _, warning := range warnings {
		r.warn("settings", warning)
	}
}

func (r *report) ok(name, format string, args ...any) {
	r.writeLine("ok", name, fmt.Sprintf(format, args...))
}

func (r *report) skip(reason string, names ...string) {
	for _, name := range names {
		r.writeLine("skip", name, reason)
	}
}

// warn prints a result. The expected result and an action may follow.
func (r *report) warn(name string, found ...string) { r.writeLine("warn", name, found...) }

func (r *report) fail(name string, found ...string) {
	r.failed++
	r.writeLine("FAIL", name, found...)
}

func (r *report) failFor(name string, err error, known []advice) {
	a := first(known, err)
	found := err.Error()
	if end := io.EOF.Error(); found == end || strings.HasSuffix(found, ": "+end) {
		found = strings.TrimSuffix(found, end) + "the other end closed the connection without an answer"
	}

	r.fail(name, found, a.want, a.action)
}

// writeLine writes one line. The text may contain line breaks, because it may be an error of
// another host.
func (r *report) writeLine(result, name string, text ...string) {
	if len(text) > 1 {
		text[1] = "want " + text[1]
	}
	r.checks++
	r.printf("%-4s  %-20s  %s\n", result, name, strings.Join(strings.Fields(strings.Join(text, "; ")), " "))
}

func (r *report) printf(format string, args ...any) {
	_, err := fmt.Fprintf(r.out, format, args...)
	r.err = cmp.Or(r.err, err)
}

func (r *report) endReport() error {
	r.printf("\n%d checks, %d failed\n", r.checks, r.failed)
	if r.failed > 0 {
		return ErrFailed
	}
	return r.err
}
