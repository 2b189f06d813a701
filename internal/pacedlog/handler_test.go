package pacedlog_test

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/runtime-watcher/runtime-watcher/internal/pacedlog"
)

const every = time.Minute

// newLog returns a paced logger, and what it has written.
func newLog(keys ...string) (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})
	return pacedlog.New(slog.New(handler), every, keys...), &out
}

func wantLines(t *testing.T, out *bytes.Buffer, want ...string) {
	t.Helper()

	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out)
	}

	for i, text := range want {
		if _, line, _ := strings.Cut(lines[i], "msg="); line != text {
			t.Errorf("line %d is %q, want %q", i, line, text)
		}
	}
}

func TestAStateThatLastsIsLoggedOnceInEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := newLog("reason")
		for range 3 {
			log.Warn("failed", "reason", "a", "n", 1)
		}

		time.Sleep(every - 1)
		log.Warn("failed", "reason", "a", "n", 2)
		time.Sleep(time.Nanosecond)
		log.Warn("failed", "reason", "a", "n", 3)
		time.Sleep(every)
		log.Warn("failed", "reason", "a", "n", 4)
		wantLines(t, out, "failed reason=a n=1 suppressed=0", "failed reason=a n=3 suppressed=3",
			"failed reason=a n=4 suppressed=0")
	})
}

func TestAnotherReasonMessageOrManagerIsLoggedAtOnce(t *testing.T) {
	t.Parallel()

	log, out := newLog("reason", "manager")
	for range 2 {
		log.Warn("failed", "reason", "a", "attempt", 1)
		log.Warn("failed", "reason", "b", "attempt", 2)
		log.Warn("ended", "reason", "a")
		log.With("manager", "kyma").Warn("failed", "reason", "a")
	}

	wantLines(t, out, "failed reason=a attempt=1 suppressed=0", "failed reason=b attempt=2 suppressed=0",
		"ended reason=a suppressed=0", "failed manager=kyma reason=a suppressed=0")
}

func TestDebugIsNotBounded(t *testing.T) {
	t.Parallel()

	log, out := newLog()
	log.Debug("took")
	log.WithGroup("g").Debug("took", "n", 1)
	wantLines(t, out, "took", "took g.n=1")
}

// A sender that chooses reasons without end gets a bounded number of lines, and no memory.
func TestKindsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, out := newLog("reason")
		invent := func(from int) (lines int) {
			out.Reset()
			for i := range 1000 {
				log.Warn("failed", "reason", strconv.Itoa(from+i))
			}
			return strings.Count(out.String(), "\n")
		}

		const most = 101
		if n := invent(0); n != most {
			t.Errorf("%d lines about 1000 reasons, want %d", n, most)
		}
		if n := invent(1000); n != 0 {
			t.Errorf("%d more lines at once, want none", n)
		}

		time.Sleep(every)
		if n := invent(2000); n != most {
			t.Errorf("%d lines after a while, want %d", n, most)
		}
	})
}

// A clock that is set back by an hour must not silence lines for an hour.
func TestWallClockDoesNotCount(t *testing.T) {
	t.Parallel()

	log, out := newLog()
	start := time.Now()
	for _, at := range []time.Time{
		start, start.Add(every / 2), setBack(start.Add(every)), setBack(start.Add(every + 1)), start.Add(2 * every),
	} {
		if err := log.Handler().Handle(t.Context(), slog.NewRecord(at, slog.LevelWarn, "failed", 0)); err != nil {
			t.Fatal(err)
		}
	}

	wantLines(t, out, "failed suppressed=0", "failed suppressed=1", "failed suppressed=1")
}

// setBack returns t as it is after the wall clock was set back by an hour. Its monotonic reading,
// which Sub uses, stays. Package time has no other way to separate the two.
func setBack(t time.Time) time.Time {
	const hourInWall = 3600 << 30 // Seconds stand above 30 bits of nanoseconds.
	*(*uint64)(unsafe.Pointer(&t)) -= hourInWall
	return t
}

func TestNoLoggerDiscards(t *testing.T) {
	t.Parallel()

	log := pacedlog.New(nil, every)
	if log.Enabled(t.Context(), slog.LevelError) {
		t.Error("a logger without a target is enabled")
	}

	log.Warn("failed")
}
