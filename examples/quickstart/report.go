package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// report writes the output.
type report struct {
	mu  sync.Mutex
	out io.Writer
}

// printf writes at once. A closed pipe ends the program.
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
