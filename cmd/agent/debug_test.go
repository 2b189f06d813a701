package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

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
