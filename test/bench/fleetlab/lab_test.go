package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func TestMain(m *testing.M) {
	if isOperator() {
		main()
	}
	log.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// shortShape makes a run of all scenarios last half a minute.
func shortShape() shape {
	return shape{
		heartbeat: 2 * time.Second, changeEvery: 3 * time.Second, hold: time.Second, storm: time.Second,
		stormEvents: 20, poll: 100 * time.Millisecond, lease: 5 * time.Second, every: 100 * time.Millisecond,
		patience: time.Minute,
	}
}

// TestFleet plays all scenarios with 300 runtimes. It asserts the guarantees, and no times.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a real API server and an operator, half a minute")
	}
	t.Parallel()
	const runtimes = 300
	results := lab(t, options{
		sizes: []int{runtimes}, scenarios: scenarios(), variants: variants()[:1], out: t.TempDir(), shape: shortShape(),
	})
	if len(results) != len(scenarios()) {
		t.Fatalf("%d results, want %d", len(results), len(scenarios()))
	}
	for _, r := range results {
		t.Logf("%s: %s", r.scenario, r)
		r.check(t)
	}
}

// lab runs the lab as the command does, and returns its results.
func lab(t *testing.T, opts options) (results []*result) {
	t.Helper()
	err := withControlPlane(t.Context(), func(c *cluster) (err error) {
		results, err = measureAll(t.Context(), c, opts, testWriter{t})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := writeReport(opts, results, &table); err != nil {
		t.Fatal(err)
	}
	checkReport(t, opts.out, table.String(), len(results))
	return results
}

// check compares a result with the guarantees.
func (r *result) check(t *testing.T) {
	t.Helper()
	if r.missed > 0 {
		t.Errorf("%s: %d runtimes were not reconciled after their last change", r.scenario, r.missed)
	}
	if r.looks == 0 || r.look.p99 == 0 || r.ack.p99 == 0 {
		t.Errorf("%s: %d reconciles, no latencies: the lab measures nothing", r.scenario, r.looks)
	}
	if want, ok := causesOf()[r.scenario]; ok && r.resyncsOf(want) < int64(r.n/100) {
		t.Errorf("%s: resyncs %s, want some of %v", r.scenario, r.causes(), want)
	}
	// The fleet writes at most 20 lines in 10 s.
	if most := 100 + 2*int64(r.took.Seconds()); r.operatorLines > most {
		t.Errorf("%s: the operator logged %d lines in %s, want %d at most", r.scenario, r.operatorLines, r.took, most)
	}
}

// causesOf has the causes of the resyncs that a scenario must have. The resend of an agent's resync
// replaces that of the fleet.
func causesOf() map[string][]string {
	return map[string][]string{
		"restart": {"new_epoch"}, "leader": {"new_epoch"}, "flapping": {"agent", "new_epoch"}, "silence": {"returned", "agent"},
	}
}

func (r *result) resyncsOf(causes []string) (n int64) {
	for _, cause := range causes {
		n += r.resyncs[cause]
	}
	return n
}

// checkReport checks that the table has a row for each result, and that the plots are XML.
func checkReport(t *testing.T, dir, table string, results int) {
	t.Helper()
	const head = 2
	if rows := strings.Count(table, "\n|"); rows != results+head {
		t.Errorf("%d rows in the table, want %d:\n%s", rows, results+head, table)
	}
	for _, name := range []string{"fleet-curve.svg", "fleet-timeline.svg"} {
		if err := wellFormed(filepath.Join(dir, name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func wellFormed(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	decoder := xml.NewDecoder(bytes.NewReader(text))
	for {
		if _, err := decoder.Token(); err != nil {
			return ignoreEOF(err)
		}
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// TestTheLabCanFail runs an operator that does not reconcile every seventh runtime.
func TestTheLabCanFail(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a real API server and an operator")
	}
	t.Parallel()
	short := shortShape()
	short.patience, short.changeEvery = 5*time.Second, 200*time.Millisecond
	results := lab(t, options{
		sizes: []int{20}, scenarios: scenarios()[:1], variants: []variant{{Name: "lossy", Lossy: true}},
		out: t.TempDir(), shape: short,
	})
	if err := verdict(results); err == nil {
		t.Errorf("the lab finds no missed change: %s", results[0])
	}
}

func TestOracle(t *testing.T) {
	t.Parallel()
	o := newOracle(2)
	before := now()
	o.changed(0)
	o.reconciled(0, before)
	if n := o.missing(now()); n != 1 {
		t.Errorf("%d runtimes are missing after a reconcile that began before the change, want 1", n)
	}
	o.reconciled(1, now())
	o.reconciled(0, now())
	if n := o.missing(now()); n != 0 {
		t.Errorf("%d runtimes are missing after their reconciles, want 0", n)
	}
	if taken := o.latency.take(); len(taken) != 1 {
		t.Errorf("%d latencies, want 1: that of the change", len(taken))
	}
}

// testWriter writes the progress into the log of a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(text []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Log(strings.TrimSuffix(string(text), "\n"))
	}
	return len(text), nil
}
