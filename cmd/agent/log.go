package main

import (
	"context"
	"io"
	"log/slog"
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
