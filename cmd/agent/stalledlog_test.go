package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// stallableSink is a log book until it is stalled. Then it is a pipe that nothing reads.
type stallableSink struct {
	*logBook

	pipe    *os.File
	stalled atomic.Bool
}

func (s *stallableSink) Write(line []byte) (int, error) {
	if s.stalled.Load() {
		return s.pipe.Write(line)
	}
	return s.logBook.Write(line)
}

// A stalled log sink costs lines, which are counted and named later. Reviews and events do not
// wait.
func TestAStalledLogSinkDelaysNothing(t *testing.T) {
	t.Parallel()
	const reviews = 4000 // With a debug line each, more than a pipe and the buffer hold.
	p := newPKI(t)
	kcp := newControlPlane(t, p, http.StatusOK)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	sink := &stallableSink{logBook: newLogBook(), pipe: writer}
	ctx, signal := context.WithCancel(t.Context())
	s := &started{log: sink.logBook, signal: signal, ended: make(chan error, 1), client: p.apiServer(t)}
	go func() {
		s.ended <- run(ctx, nil, lookup(env(p, kcp, "LOG_LEVEL=debug", "OUTBOX_MAX_KEYS=5000")), io.Discard, sink)
	}()
	s.webhook, s.metrics = s.log.addresses(t)
	sink.stalled.Store(true)
	for i := range reviews {
		s.review(t, fmt.Sprintf("object-%d", i), false)
	}
	for events := 0; events < reviews; {
		events += len(kcp.next(t).events)
	}
	_, scrape := s.get(t, "http://"+s.metrics+"/metrics")
	dropped := count(t, scrape, "runtime_watcher_agent_log_lines_dropped_total")
	if dropped == 0 {
		t.Error("no line was dropped: the sink was not stalled")
	}
	lines := make(chan string, reviews)
	go func() {
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			lines <- scanner.Text()
		}
		close(lines)
	}()
	awaitLine(t, lines, fmt.Sprintf(`"msg":"log lines were dropped: the sink was stalled","lines":%d}`, int(dropped)))
	s.client.CloseIdleConnections()
	s.signal()
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
	_ = writer.Close() // The reader ends.
	for range lines {
	}
}

func awaitLine(t *testing.T, lines <-chan string, want string) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case line := <-lines:
			if strings.Contains(line, want) {
				return
			}
		case <-timeout:
			t.Fatalf("no line with %s", want)
		}
	}
}
