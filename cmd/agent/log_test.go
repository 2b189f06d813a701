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
