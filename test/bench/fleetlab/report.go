package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// writeReport prints the table, and writes it and the plots into a directory.
func writeReport(opts options, results []*result, stdout io.Writer) error {
	text := table(results)
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	write := func(name string, content []byte) error {
		return os.WriteFile(filepath.Join(opts.out, name), content, 0o600)
	}
	return errors.Join(write("fleet.md", []byte(text)),
		write("fleet-curve.svg", curves(results)), write("fleet-timeline.svg", timelines(results)))
}

// table returns the results as Markdown.
func table(results []*result) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s, %d cores, %s, load average at the end %s\n\n",
		time.Now().UTC().Format(time.DateTime), runtime.NumCPU(), runtime.Version(), load())
	head := []string{
		"runtimes", "variant", "scenario", "memory each", "processor each, a minute", "processor, operator + lab", "handshakes, peak a second",
		"ack p50 / p99", "commit to reconcile p50 / p99", "known / fresh again after", "changes, reconciles",
		"resyncs", "missed", "log lines, operator / agents", "load", "remarks",
	}
	row(&b, head)
	row(&b, slices.Repeat([]string{"---"}, len(head)))
	for _, r := range results {
		row(&b, r.cells())
	}
	return b.String()
}

func row(b *bytes.Buffer, cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }

func (r *result) cells() []string {
	return []string{
		strconv.Itoa(r.n), r.variant, r.scenario, r.memory(),
		fmt.Sprintf("%.1f ms", float64(r.processor.Microseconds())/1000),
		fmt.Sprintf("%.1f + %.1f s", r.operator.Seconds(), r.lab.Seconds()),
		fmt.Sprintf("%d, %.0f", r.handshakes, r.peak), r.ack.String(), r.look.String(),
		fmt.Sprintf("%.1f / %.1f s", r.known.Seconds(), r.fresh.Seconds()),
		fmt.Sprintf("%d, %d", r.changes, r.looks), r.causes(), strconv.Itoa(r.missed),
		fmt.Sprintf("%d / %d", r.operatorLines, r.agentLines), r.load, strings.Join(r.notes, "; "),
	}
}

// String returns both quantiles in milliseconds.
func (q quantiles) String() string {
	return fmt.Sprintf("%.1f / %.1f ms", float64(q.p50.Microseconds())/1000, float64(q.p99.Microseconds())/1000)
}

// memory returns the resident memory for each runtime, and the stacks below it.
func (r *result) memory() string {
	return fmt.Sprintf("%.1f KiB, stacks %.1f", float64(r.resident)/1024, float64(r.stacks)/float64(r.n)/1024)
}

// causes returns the resyncs by cause.
func (r *result) causes() string {
	if len(r.resyncs) == 0 {
		return "0"
	}
	var all []string
	for _, cause := range slices.Sorted(maps.Keys(r.resyncs)) {
		all = append(all, fmt.Sprintf("%s %d", cause, r.resyncs[cause]))
	}
	return strings.Join(all, ", ")
}

// String is for the progress.
func (r *result) String() string { return strings.Join(r.cells()[3:], " | ") }
