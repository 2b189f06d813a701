package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	p, kcp := newPlane(t)
	reader, writer, err := os.Pipe()
	noError(t, err)
	sink := &stallableSink{logBook: newLogBook(), pipe: writer}
	ctx, end := context.WithCancel(t.Context())
	s := &started{pki: p, log: sink.logBook, signal: end, ended: make(chan error, 1), client: p.apiServer(t)}
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

	scrape := s.scrape(t)
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

	awaitDropped(t, lines, dropped)
	s.client.CloseIdleConnections()
	s.signal()
	noError(t, <-s.ended)
	_ = writer.Close() // The reader ends.
	for range lines {
	}
}

// awaitDropped waits until lines name that many dropped ones, or more.
func awaitDropped(t *testing.T, lines <-chan string, want float64) {
	t.Helper()

	timeout := time.After(patience)
	for named := 0.0; named < want; {
		select {
		case text := <-lines:
			var line struct {
				Msg   string  `json:"msg"`
				Lines float64 `json:"lines"`
			}
			if json.Unmarshal([]byte(text), &line) == nil && strings.HasPrefix(line.Msg, "log lines were dropped") {
				named += line.Lines
			}
		case <-timeout:
			t.Fatalf("lines name %v dropped ones, want %v", named, want)
		}
	}
}

func TestDurationsAreReadable(t *testing.T) {
	t.Parallel()

	var out strings.Builder
	log := newLogger(&out, slog.LevelInfo).With(slog.Duration("retry", 5*time.Minute))
	log.Info("hello", slog.Group("g", slog.Any("wait", 1500*time.Millisecond)))

	for _, want := range []string{`"retry":"5m0s"`, `"wait":"1.5s"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log %s, want %s in it", &out, want)
		}
	}
}

// TestDebug sends the signal to this process. The level falls to debug, and returns.
func TestDebug(t *testing.T) {
	level := &slog.LevelVar{}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	lowered := make(chan struct{}, 1)
	log := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		select {
		case lowered <- struct{}{}:
		default:
		}
		return len(p), nil
	}), nil))

	running.Go(func() { debugOnSignal(ctx, level, log, time.Second) })
	defer running.Wait()
	defer stop()

	// A signal that comes too early is sent again, and does not end this process.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGUSR1)
	defer signal.Stop(caught)
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()

	for level.Level() != slog.LevelDebug {
		noError(t, sendDebug([]string{"--pid=" + strconv.Itoa(os.Getpid())}, io.Discard))
		select {
		case <-lowered:
		case <-again.C:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is logged after the signal")
		}
	}

	for level.Level() != slog.LevelInfo {
		<-again.C
	}
}

func TestDebugNamesAProcessThatIsNotThere(t *testing.T) {
	if err := sendDebug([]string{"--pid=99999999"}, io.Discard); err == nil {
		t.Error("no error without a process")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
