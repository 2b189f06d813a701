package main

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
)

type verdict struct {
	ctx     context.Context //nolint:containedctx // Like the context of a testing.T, it ends with the check.
	mu      sync.Mutex
	faults  []string
	skipped string
}

var _ coretest.T = (*verdict)(nil)

func (v *verdict) Context() context.Context { return v.ctx }

// Helper does nothing, because faults have no line numbers.
func (v *verdict) Helper() {}

func (v *verdict) Errorf(format string, args ...any) {
	const longest = 400
	v.mu.Lock()
	defer v.mu.Unlock()

	v.faults = append(v.faults, fmt.Sprintf("%.*s", longest, fmt.Sprintf(format, args...)))
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

func (v *verdict) must(err error) {
	if err != nil {
		v.Fatalf("%v", err)
	}
}

func (v *verdict) skip(reason string) {
	v.skipped = reason
	runtime.Goexit()
}

// report contains the results of the rules of one end. It is written as JUnit XML.
type report struct {
	XMLName  xml.Name  `xml:"testsuite"`
	Name     string    `xml:"name,attr"`
	Tests    int       `xml:"tests,attr"`
	Failures int       `xml:"failures,attr"`
	Skips    int       `xml:"skipped,attr"`
	Results  []*result `xml:"testcase"`

	mu sync.Mutex
}

// result is the verdict on one rule, and a test case of JUnit. The lock of [report] guards it.
type result struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Time    float64  `xml:"time,attr"`
	Failure *message `xml:"failure"`
	Skipped *message `xml:"skipped"`

	rule   conformance.Rule
	faults []string
}

type message struct {
	Text string `xml:"message,attr"`
}

func newReport(end conformance.End, only *regexp.Regexp) *report {
	r := &report{Name: "contract-v3." + string(end)}
	for _, rule := range conformance.Rules() {
		if rule.End == end && only.MatchString(rule.ID) {
			r.Results = append(r.Results, &result{
				Class: r.Name + "." + rule.Section, Name: rule.ID + ": " + rule.Says, rule: rule,
			})
		}
	}
	return r
}

// run calls a check in a separate goroutine, and waits for its end.
func (r *report) run(ctx context.Context, of *result, check func(v *verdict)) {
	v := &verdict{ctx: ctx}
	started := time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		check(v)
	}()
	<-ended
	r.mu.Lock()
	defer r.mu.Unlock()

	of.Time += time.Since(started).Seconds()
	of.faults = append(of.faults, v.faults...)
	if v.skipped != "" {
		of.Skipped = &message{v.skipped}
	}
}

func (r *report) write(out io.Writer, junit string) error {
	r.Tests = len(r.Results)
	for _, of := range r.Results {
		word := "ok"
		lines := of.faults
		switch {
		case len(of.faults) > 0:
			r.Failures++
			word = "FAIL"
			of.Failure = &message{strings.Join(of.faults, "\n")}
			of.Skipped = nil
		case of.Skipped != nil:
			r.Skips++
			word = "skip"
			lines = []string{of.Skipped.Text}
		}

		_, _ = fmt.Fprintf(out, "%-4s  %-19s %-20s %s\n", word, of.rule.ID, "#"+of.rule.Section, of.rule.Says)
		for _, line := range lines {
			_, _ = fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(line, "\n", "\n      "))
		}
	}

	kept := r.Tests - r.Failures - r.Skips
	_, _ = fmt.Fprintf(out, "%s: %d rules kept, %d broken, %d skipped\n", r.Name, kept, r.Failures, r.Skips)

	if junit != "" {
		text, err := xml.MarshalIndent(r, "", "  ")
		if err != nil {
			return err
		}

		const mode = 0o644
		text = append([]byte(xml.Header), text...)
		if err := os.WriteFile(junit, text, mode); err != nil { //nolint:gosec // The user names the file.
			return err
		}
	}

	if r.Failures > 0 || kept == 0 {
		return fmt.Errorf("%d rules are broken, %d kept", r.Failures, kept)
	}

	return nil
}
