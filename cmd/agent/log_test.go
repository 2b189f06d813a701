package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

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

func TestWithoutDebug(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	log := withoutDebug(newLogger(&out, slog.LevelDebug)).With(slog.Int("a", 1)).WithGroup("g")
	log.Debug("unwanted")
	log.Info("wanted")

	if got := out.String(); strings.Contains(got, "unwanted") || !strings.Contains(got, `"wanted"`) {
		t.Errorf("log %s, want the info line only", got)
	}

	out.Reset()
	withoutDebug(newLogger(&out, slog.LevelError)).Info("unwanted")

	if out.Len() > 0 {
		t.Errorf("log %s, want the level of the handler below", &out)
	}
}
