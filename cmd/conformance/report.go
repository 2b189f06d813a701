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

// skip ends the check without a verdict.
func (v *verdict) skip(reason string) {
	v.skipped = reason
	runtime.Goexit()
}

// result has the findings of the checks of a rule.
type result struct {
	conformance.Rule

	checks  int
	faults  []string
	skipped string
	took    time.Duration
}

// report has the results of the rules of one end.
type report struct {
	end  conformance.End
	only *regexp.Regexp

	mu      sync.Mutex
	results map[string]*result
}

// run calls a check of a rule in a goroutine of its own, and waits for its end.
func (r *report) run(ctx context.Context, rule string, check func(v *verdict)) {
	if !r.only.MatchString(rule) {
		return
	}
	v, started, ended := &verdict{ctx: ctx}, time.Now(), make(chan struct{})
	go func() {
		defer close(ended)
		check(v)
	}()
	<-ended
	r.add(rule, v, time.Since(started))
}

func (r *report) add(rule string, v *verdict, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.results == nil {
		r.results = map[string]*result{}
	}
	have := r.results[rule]
	if have == nil {
		have = &result{}
		r.results[rule] = have
	}
	have.checks++
	have.faults = append(have.faults, v.faults...)
	have.skipped += v.skipped
	have.took += took
}

// outcome is the word of a result in the table.
func (r *result) outcome() string {
	switch {
	case r.checks == 0, r.skipped != "" && len(r.faults) == 0:
		return "skip"
	case len(r.faults) > 0:
		return "FAIL"
	default:
		return "ok"
	}
}

// all returns the results in the order of the rules.
func (r *report) all() (all []*result) {
	for _, rule := range conformance.Rules() {
		if rule.End != r.end || !r.only.MatchString(rule.ID) {
			continue
		}
		found := r.results[rule.ID]
		if found == nil {
			found = &result{skipped: "no check ran"}
		}
		found.Rule = rule
		all = append(all, found)
	}
	return all
}

// write prints the table, and fails if a rule is broken.
func (r *report) write(out io.Writer, junit string) error {
	counts := map[string]int{}
	for _, rule := range r.all() {
		counts[rule.outcome()]++
		_, _ = fmt.Fprintf(out, "%-4s  %-19s %-20s %s\n", rule.outcome(), rule.ID, "#"+rule.Section, rule.Says)
		if rule.skipped != "" {
			_, _ = fmt.Fprintf(out, "      %s\n", rule.skipped)
		}
		for _, fault := range rule.faults {
			_, _ = fmt.Fprintf(out, "      %s\n", strings.ReplaceAll(fault, "\n", "\n      "))
		}
	}
	_, _ = fmt.Fprintf(out, "%s: %d rules kept, %d broken, %d skipped\n",
		r.end, counts["ok"], counts["FAIL"], counts["skip"])
	if err := r.writeJUnit(junit); err != nil {
		return err
	}
	if counts["FAIL"] > 0 || counts["ok"] == 0 {
		return fmt.Errorf("%d rules are broken, %d kept", counts["FAIL"], counts["ok"])
	}
	return nil
}

// suite, testCase and message are JUnit XML.
type suite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Skipped  int        `xml:"skipped,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Time    string   `xml:"time,attr"`
	Failure *message `xml:"failure"`
	Skipped *message `xml:"skipped"`
}

type message struct {
	Message string `xml:"message,attr"`
}

func (r *report) writeJUnit(file string) error {
	if file == "" {
		return nil
	}
	s := suite{Name: "contract-v3." + string(r.end)}
	for _, rule := range r.all() {
		c := testCase{
			Class: s.Name + "." + rule.Section, Name: rule.ID + ": " + rule.Says,
			Time: fmt.Sprintf("%.3f", rule.took.Seconds()),
		}
		switch rule.outcome() {
		case "FAIL":
			s.Failures++
			c.Failure = &message{strings.Join(rule.faults, "\n")}
		case "skip":
			s.Skipped++
			c.Skipped = &message{rule.skipped}
		}
		s.Cases = append(s.Cases, c)
	}
	s.Tests = len(s.Cases)
	text, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	const mode = 0o644
	return os.WriteFile(file, append([]byte(xml.Header), text...), mode)
}
