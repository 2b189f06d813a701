package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// journal contains an entry for each decision, delivery and reconcile. The zero value is ready to
// use.
type journal struct {
	mu sync.Mutex
	// live gets each new entry, with a text about it.
	live    func(where, text string)
	entries []entry
}

// entry is a decision of the agent, a delivery to the listener or a reconcile of the operator.
type entry struct {
	where   string
	runtime core.RuntimeID
	// about is the decision, the object of the event, or the state that the reconcile has read.
	about string
	// began is the start of a reconcile.
	began time.Time
}

const agentDecides, listenerAccepts, operatorReconciles = "agent", "listener", "operator"

const aResync = "a resync" // In place of an object.

func (j *journal) enter(e entry, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, e)

	if j.live != nil {
		j.live(e.where, fmt.Sprintf(format, args...))
	}
}

// follow makes live get each new entry.
func (j *journal) follow(live func(where, text string)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live = live
}

// now returns the number of entries.
func (j *journal) now() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

// since returns the entries of a place, without the first entries of the journal.
func (j *journal) since(first int, where string) (found []entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.entries[first:]), func(e entry) bool { return e.where != where })
}

// report writes the output.
type report struct {
	mu  sync.Mutex
	out io.Writer
}

// printf writes immediately. A closed pipe ends the program.
func (r *report) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.out, format, args...)
}

// The columns of stages and steps.
const (
	stageFormat = "  %-13s %-76s %7s\n"
	rowFormat   = "  %-36s %8s   %-15s %s\n"
)

// Write implements [io.Writer], for the progress of a build.
func (r *report) Write(text []byte) (int, error) {
	r.printf("  %-13s ... %s\n", "", strings.TrimPrefix(strings.TrimSpace(string(text)), "controlplane: "))
	return len(text), nil
}

func millis(d time.Duration) string  { return fmt.Sprintf("%d ms", d.Milliseconds()) }
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
