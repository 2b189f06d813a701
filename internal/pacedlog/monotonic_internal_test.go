package pacedlog

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// The step back of a wall clock must not silence a line.
func TestPaceUsesTheMonotonicClock(t *testing.T) {
	paced := &handler{Handler: slog.DiscardHandler, pace: NewPace(time.Minute)}
	slog.New(enabled{paced}).Warn("line")
	if next := paced.pace.kinds["line"].next.String(); !strings.Contains(next, "m=") {
		t.Errorf("the next line is due at %s, want a time of the monotonic clock", next)
	}
}

// enabled takes the lines that a discarding handler does not ask for.
type enabled struct{ *handler }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }
