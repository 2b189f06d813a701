// Package logwriter keeps a log that stalls away from the reviews of an agent.
package logwriter

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLogBytes bounds the lines that wait for the sink.
	maxLogBytes = 256 << 10
	// flushTimeout bounds the wait for the sink at the end.
	flushTimeout = time.Second
)

// Writer writes lines to a sink without waiting for it, so that a stalled sink does not delay
// reviews. Lines that exceed 256 KiB while the sink is stalled are dropped and counted. Create one
// with [New]. Its methods may be called concurrently.
type Writer struct {
	sink    io.Writer
	dropped atomic.Int64

	mu       sync.Mutex
	lines    [][]byte
	bytes    int
	added    chan struct{} // holds a token when there may be lines
	reported int64         // dropped lines that the sink knows of
}

// New returns a writer to sink. Lines wait until [Writer.Start] is called.
func New(sink io.Writer) *Writer {
	return &Writer{sink: sink, added: make(chan struct{}, 1)}
}

// Write keeps one line for the sink, or drops it. It never blocks and never fails.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bytes+len(line) > maxLogBytes {
		w.dropped.Add(1)
		return len(line), nil
	}
	w.lines = append(w.lines, bytes.Clone(line))
	w.bytes += len(line)
	select {
	case w.added <- struct{}{}:
	default:
	}
	return len(line), nil
}

// Dropped returns the number of dropped lines.
func (w *Writer) Dropped() int64 { return w.dropped.Load() }

// Start writes lines until ctx ends, and then at most 1 s longer. It returns nil. A write to a
// stalled sink is left behind: nothing can end it.
func (w *Writer) Start(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.write(ctx)
	}()
	<-ctx.Done()
	select {
	case <-ended:
	case <-time.After(flushTimeout):
	}
	return nil
}

func (w *Writer) write(ctx context.Context) {
	for ended := false; !ended; {
		select {
		case <-w.added:
		case <-ctx.Done():
			ended = true
		}
		for line := w.take(); line != nil; line = w.take() {
			_, _ = w.sink.Write(line) // There is no other place to report to.
		}
	}
}

// take returns the next line, and after the last one a line about those that were dropped, nil for
// none. Its room is free only then, so that the lines that the sink did not take yet count.
func (w *Writer) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) > 0 {
		line := w.lines[0]
		w.lines[0] = nil
		w.lines = w.lines[1:]
		w.bytes -= len(line)
		return line
	}
	w.lines = nil
	lines := w.dropped.Load() - w.reported
	if lines == 0 {
		return nil
	}
	w.reported += lines
	const line = `{"time":%q,"level":"WARN","msg":"log lines were dropped: the sink was stalled","lines":%d}` + "\n"
	return fmt.Appendf(nil, line, time.Now().Format(time.RFC3339Nano), lines)
}
