// Package logwriter writes log lines in the background, so that a stalled log does not delay the
// reviews of an agent.
package logwriter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

const (
	// maxLogBytes and maxLogLines bound the lines that wait for the sink.
	maxLogBytes = 256 << 10
	maxLogLines = 2048
	// flushTimeout bounds the wait for the sink at the end.
	flushTimeout = time.Second
)

// Writer writes lines to a sink without waiting for it, so that a stalled sink does not delay
// reviews. Lines beyond 256 KiB or 2,048 lines are dropped and counted while the sink is stalled.
// Create one with [New]. Its methods may be called concurrently.
type Writer struct {
	sink    io.Writer
	lines   chan []byte
	bytes   atomic.Int64 // of the lines
	dropped atomic.Int64
}

// New returns a writer to sink. Lines wait until [Writer.Start] is called.
func New(sink io.Writer) *Writer { return &Writer{sink: sink, lines: make(chan []byte, maxLogLines)} }

// Write keeps one line for the sink, or drops it. It never blocks and never fails.
func (w *Writer) Write(line []byte) (int, error) {
	size := int64(len(line))
	if w.bytes.Add(size) <= maxLogBytes {
		select {
		case w.lines <- bytes.Clone(line):
			return len(line), nil
		default:
		}
	}

	w.bytes.Add(-size)
	w.dropped.Add(1)
	return len(line), nil
}

// Dropped returns the number of dropped lines.
func (w *Writer) Dropped() int64 { return w.dropped.Load() }

// Start writes lines until ctx ends, and then for at most 1 s longer. It returns nil. A write to a
// stalled sink is left running, because nothing can end it.
func (w *Writer) Start(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.writeLines(ctx)
	}()
	<-ctx.Done()

	select {
	case <-ended:
	case <-time.After(flushTimeout):
	}

	return nil
}

// writeLines ignores errors of the sink: there is no other place to report to.
func (w *Writer) writeLines(ctx context.Context) {
	const report = `{"time":%q,"level":"WARN","msg":"log lines were dropped: the sink was stalled","lines":%d}` + "\n"
	reported := int64(0)

	for {
		if lost := w.dropped.Load() - reported; lost > 0 && len(w.lines) == 0 {
			reported += lost
			_, _ = fmt.Fprintf(w.sink, report, time.Now().Format(time.RFC3339Nano), lost)
		}

		select {
		case line := <-w.lines:
			w.bytes.Add(-int64(len(line)))
			_, _ = w.sink.Write(line)
		case <-ctx.Done():
			if len(w.lines) == 0 {
				return
			}
		}
	}
}
