package certificates

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// A rotation that waits for days is reconciled every two seconds.
func TestARotationThatWaitsIsLoggedAtABoundedPace(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	now := time.Unix(1e9, 0)
	set := &Certificates{opts: Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Now: func() time.Time { return now },
	}.withDefaults()}
	status := Status{Phase: phaseConfirming, Generation: 2}
	for i := range 1000 {
		status.Waiting = append(status.Waiting, core.RuntimeID("runtime-"+strconv.Itoa(i)))
	}
	for end := now.Add(24 * time.Hour); now.Before(end); now = now.Add(pollInterval) {
		status.Message = message(status)
		set.announce(t.Context(), &observed{}, status)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 24 {
		t.Errorf("%d lines a day, want one an hour", len(lines))
	}
	if len(lines[0]) > 1000 || !strings.Contains(lines[0], "waiting=1000") || !strings.Contains(lines[0], "runtime-9") {
		t.Errorf("want the number and some of the runtimes: %.2000s", lines[0])
	}
	// A change is logged soon, and not each one.
	log.Reset()
	for range 60 {
		status.Waiting = status.Waiting[1:]
		status.Message = message(status)
		set.announce(t.Context(), &observed{}, status)
		now = now.Add(pollInterval)
	}
	if lines := strings.Count(log.String(), "\n"); lines < 10 || lines > 13 {
		t.Errorf("%d lines in two minutes of progress, want one each ten seconds", lines)
	}
}
