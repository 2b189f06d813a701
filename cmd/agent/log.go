package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"
)

// newLogger logs one JSON object per line. Durations are text such as 1m30s.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: readable}))
}

// readable replaces a duration, which JSON would have in nanoseconds.
func readable(_ []string, attr slog.Attr) slog.Attr {
	if attr.Value.Kind() == slog.KindDuration {
		attr.Value = slog.StringValue(attr.Value.Duration().String())
	}

	return attr
}

// withoutDebug drops debug lines, for a part with events that another part logs already.
func withoutDebug(log *slog.Logger) *slog.Logger { return slog.New(noDebug{log.Handler()}) }

type noDebug struct{ slog.Handler }

// Enabled is false for debug, and otherwise as in the wrapped handler.
func (h noDebug) Enabled(ctx context.Context, level slog.Level) bool {
	return level > slog.LevelDebug && h.Handler.Enabled(ctx, level)
}

// WithAttrs implements [slog.Handler].
func (h noDebug) WithAttrs(attrs []slog.Attr) slog.Handler {
	return noDebug{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h noDebug) WithGroup(name string) slog.Handler { return noDebug{h.Handler.WithGroup(name)} }

// throttled passes one record a minute, so that clients cannot flood the log. All its records must
// be of one kind, because it drops any of them.
type throttled struct {
	slog.Handler

	next, suppressed atomic.Int64
}

const throttleEvery = time.Minute

// Handle adds the number of dropped records to the next one that passes.
func (h *throttled) Handle(ctx context.Context, record slog.Record) error {
	next := h.next.Load()
	if now := record.Time.UnixNano(); now < next || !h.next.CompareAndSwap(next, now+throttleEvery.Nanoseconds()) {
		h.suppressed.Add(1)

		return nil
	}

	record.AddAttrs(slog.Int64("suppressed", h.suppressed.Swap(0)))

	return h.Handler.Handle(ctx, record)
}

// serverLog is the error log of an HTTP server. It counts failed handshakes by their text.
type serverLog struct {
	throttled

	handshakeFailed func()
}

// Handle implements [slog.Handler].
func (l *serverLog) Handle(ctx context.Context, record slog.Record) error {
	// A load balancer probes with connections that end without a byte.
	if strings.HasPrefix(record.Message, "http: TLS handshake error") && !strings.HasSuffix(record.Message, ": EOF") {
		l.handshakeFailed()
	}

	return l.throttled.Handle(ctx, record)
}
