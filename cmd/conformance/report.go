package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
)

// verdict is the [coretest.T] of a check.
type verdict struct {
	ctx     context.Context //nolint:containedctx // As that of a testing.T, it ends with the check.
	mu      sync.Mutex
	faults  []string
	skipped string
}

var _ coretest.T = (*verdict)(nil)

func (v *verdict) Context() context.Context { return v.ctx }

// Helper does nothing: faults have no lines.
func (v *verdict) Helper() {}

func (v *verdict) Error(args ...any) { v.Errorf("%s", strings.TrimSpace(fmt.Sprintln(args...))) }

func (v *verdict) Errorf(format string, args ...any) {
	const longest = 400
	v.mu.Lock()
	defer v.mu.Unlock()
	v.faults = append(v.faults, fmt.Sprintf("%.*s", longest, fmt.Sprintf(format, args...)))
}

func (v *verdict) Fatal(args ...any) {
	v.Error(args...)
	runtime.Goexit()
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

// must ends the check if a step of its own failed.
func (v *verdict) must(err error) {
	if err != nil {
		v.Fatal(err)
	}
}

// skip ends the check without a verdict.
func (v *verdict) skip(reason string) {
	v.skipped = reason
	runtime.Goexit()
}

// report has the results of the rules of one end.
type report struct {
	end     conformance.End
	results []*result

	mu sync.Mutex
}

// result has the findings of the checks of a rule.
type result struct {
	rule    conformance.Rule
	verdict verdict
	checks  int
}

// newReport returns that of the rules of an end with such an ID, in their order.
func newReport(end conformance.End, only *regexp.Regexp) *report {
	r := &report{end: end}
	for _, rule := range conformance.Rules() {
		if rule.End == end && only.MatchString(rule.ID) {
			r.results = append(r.results, &result{rule: rule})
		}
	}
	return r
}

// run calls a check in a goroutine of its own, and waits for its end.
func (r *report) run(ctx context.Context, of *result, check func(v *verdict)) {
	v, ended := &verdict{ctx: ctx}, make(chan struct{})
	go func() {
		defer close(ended)
		check(v)
	}()
	<-ended
	r.mu.Lock()
	defer r.mu.Unlock()
	of.checks++
	of.verdict.faults = append(of.verdict.faults, v.faults...)
	of.verdict.skipped = cmp.Or(of.verdict.skipped, v.skipped)
}

// The words for results in the table.
const (
	wordKept    = "ok"
	wordBroken  = "FAIL"
	wordSkipped = "skip"
)

// conclude returns the word for a result, and its lines.
func (r *result) conclude() (word string, lines []string) {
	switch {
	case len(r.verdict.faults) > 0:
		return wordBroken, r.verdict.faults
	case r.checks == 0, r.verdict.skipped != "":
		return wordSkipped, []string{cmp.Or(r.verdict.skipped, "no check ran")}
	default:
		return wordKept, nil
	}
}

// write prints the table, and fails if a rule is broken.
func (r *report) write(out io.Writer) error {
	count := make(map[string]int)
	for _, of := range r.results {
		word, lines := of.conclude()
		count[word]++
		_, _ = fmt.Fprintf(out, "%-4s  %-19s %-20s %s\n", word, of.rule.ID, "#"+of.rule.Section, of.rule.Says)
		for _, line := range lines {
			_, _ = fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(line, "\n", "\n      "))
		}
	}
	kept, broken := count[wordKept], count[wordBroken]
	_, _ = fmt.Fprintf(out, "contract-v3.%s: %d rules kept, %d broken, %d skipped\n", r.end, kept, broken, count[wordSkipped])
	if broken > 0 || kept == 0 {
		return fmt.Errorf("%d rules are broken, %d kept", broken, kept)
	}
	return nil
}
