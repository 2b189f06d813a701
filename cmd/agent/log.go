package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
}

// withoutDebug is for parts that have a debug line per event, where another part has one already.
func withoutDebug(log *slog.Logger) *slog.Logger { return slog.New(noDebug{log.Handler()}) }

type noDebug struct{ slog.Handler }

// Enabled also asks the handler that it wraps.
func (h noDebug) Enabled(ctx context.Context, level slog.Level) bool {
	return level > slog.LevelDebug && h.Handler.Enabled(ctx, level)
}

// WithAttrs keeps to what it is.
func (h noDebug) WithAttrs(attrs []slog.Attr) slog.Handler {
	return noDebug{h.Handler.WithAttrs(attrs)}
}

// WithGroup keeps to what it is.
func (h noDebug) WithGroup(name string) slog.Handler { return noDebug{h.Handler.WithGroup(name)} }

// throttled lets one record a minute pass, so that strangers who knock at a port can not flood the log. It is for handlers whose
// records are all of one kind.
type throttled struct {
	slog.Handler

	next, suppressed atomic.Int64
}

const throttleEvery = time.Minute

// Handle counts what it does not pass.
func (h *throttled) Handle(ctx context.Context, record slog.Record) error {
	next := h.next.Load()
	if now := record.Time.UnixNano(); now < next || !h.next.CompareAndSwap(next, now+throttleEvery.Nanoseconds()) {
		h.suppressed.Add(1)

		return nil
	}

	record.AddAttrs(slog.Int64("suppressed", h.suppressed.Swap(0)))

	return h.Handler.Handle(ctx, record) //nolint:wrapcheck // It is that handler.
}

// serverLog takes what an HTTP server has to say, which is the only trace of a handshake that failed.
type serverLog struct {
	throttled

	handshakeFailed func()
}

// Handle implements [slog.Handler].
func (l *serverLog) Handle(ctx context.Context, record slog.Record) error {
	// A connection that ends before it says a word is the probe of a load balancer.
	if strings.HasPrefix(record.Message, "http: TLS handshake error") && !strings.HasSuffix(record.Message, ": EOF") {
		l.handshakeFailed()
	}

	return l.throttled.Handle(ctx, record)
}
